"""dspatch as installed, one way and the other: found, of one version, complete, and gone when it is uninstalled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import installs
from tests.support.installs import Environment, run


def test_three_ways_to_ask_for_the_version(installed: Environment) -> None:
    script = run([installed.folder / "bin" / "dspatch", "--version"])
    module = installed.dspatch("--version")
    attribute = installed.code("import dspatch; print('dspatch', dspatch.__version__)")
    known = installed.code("from importlib.metadata import version; print('dspatch', version('dspatch'))")
    assert {done.code for done in (script, module, attribute, known)} == {0}
    assert script.out == module.out == attribute.out == known.out
    assert script.out.split()[1][0].isdigit()


def test_the_command_without_a_word_explains_itself(installed: Environment) -> None:
    done = installed.dspatch()
    assert done.code == 2 and done.out == ""
    assert "cannot run here" not in done.err
    for command in ("run", "activate", "deactivate", "status", "matrix"):
        assert command in done.err
    assert installed.dspatch("--help").out == done.err
    wrong = installed.dspatch("no-such-command")
    assert wrong.code == 2 and "no-such-command" in wrong.err


def test_the_matrix_is_found(installed: Environment, base: Path) -> None:
    code = "from dspatch.patching import matrix; print(matrix.default_path()); print(len(matrix.load().rows))"
    done = installed.code(code)
    assert done.code == 0, done.err
    path, rows = done.out.splitlines()
    assert Path(path).read_bytes() == (installs.source_tree(base) / "compat_matrix.yaml").read_bytes()
    assert int(rows) > 0


def test_every_module_can_be_found_and_every_patch_imported(installed: Environment, base: Path) -> None:
    code = """
import dspatch, importlib, json, pkgutil
found = [module.name for module in pkgutil.walk_packages(dspatch.__path__, "dspatch.")]
import dspatch.patches
for name in ("dspatch.patches." + module.name for module in pkgutil.iter_modules(dspatch.patches.__path__)):
    importlib.import_module(name)
    found.append(name)
print(json.dumps(sorted(set(found))))
"""
    done = installed.code(code)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    source = installs.source_tree(base)
    patches = {f"dspatch.patches.{file.stem}" for file in (source / "patches").glob("*.py") if file.stem != "__init__"}
    assert patches <= set(found)
    files = {file.relative_to(source).with_suffix("") for file in (source / "dspatch").rglob("*.py")}
    modules = {".".join(file.parts) for file in files if file.name != "__init__" and "private-site" not in file.parts}
    assert modules <= set(found)


def test_it_is_typed(installed: Environment) -> None:
    done = installed.code(
        "import dspatch, pathlib; print((pathlib.Path(dspatch.__file__).parent / 'py.typed').exists())"
    )
    assert done.out == "True\n"


def test_nothing_else_can_be_imported_by_it(installed: Environment) -> None:
    """`patches` and `tests` are too common names to be taken; under its bare name a patch would exist twice."""
    code = "import importlib.util as u; print(*(name for name in ('patches', 'tests', 'sitecustomize') if u.find_spec(name)))"
    done = installed.code(code)
    assert done.code == 0 and done.out.strip() == "", done.out


def test_the_bare_name_of_the_patches_is_refused(base: Path) -> None:
    """From the root of the tree the folder can be imported, and must not be."""
    environment = installs.with_editable(base)
    done = run([environment.python, "-c", "import patches"], cwd=installs.editable_tree(base))
    assert done.code == 1 and "use `dspatch.patches`" in done.err
    fine = run([environment.python, "-c", "import dspatch.patches"], cwd=installs.editable_tree(base))
    assert fine.code == 0, fine.err


@pytest.mark.parametrize(("switch", "wheel", "editable"), [(None, 0, 0), ("0", 0, 0), ("1", 1, 0), ("junk", 1, 0)])
def test_who_starts_by_itself(switch: str | None, wheel: int, editable: int, base: Path) -> None:
    """A wheel brings its startup files; an editable install waits for `dspatch activate`."""
    waiting = "sum(type(finder).__name__ in ('FirstSight', '_Complaint') for finder in sys.meta_path)"
    code = f"import sys; print({waiting})"
    for environment, expected in ((installs.with_wheel(base), wheel), (installs.with_editable(base), editable)):
        done = environment.code(code, DSPATCH=switch)
        assert (done.code, done.out, done.err) == (0, f"{expected}\n", "")


def test_uninstalling_removes_everything(installed: Environment, base: Path, tmp_path: Path) -> None:
    copy = installed.copy(tmp_path / "env")
    # Its compiled files are pip's too. (The copy still has the console script of the original, whose path is not in it.)
    assert copy.code("import dspatch, _dspatch_startup, dspatch.patching.engine", DSPATCH="1").code == 0
    copy.pip("uninstall", "--yes", "--quiet", "dspatch")
    empty = installs.empty(base)
    assert copy.files() == empty.files()
    left = [path for path in copy.site.rglob("*dspatch*") if not path.is_symlink()]
    assert left == []
    assert copy.code("import dspatch").code == 1
    assert copy.code("pass", DSPATCH="1").err == ""


def test_installing_a_wheel_over_an_activated_editable_install(base: Path, tmp_path: Path) -> None:
    """Then the startup files are pip's, and go with it."""
    copy = installs.with_editable(base).copy(tmp_path / "env")
    assert copy.dspatch("activate").code == 0
    copy.pip("install", *installs.OFFLINE, "--force-reinstall", str(installs.built(base, "wheel")))
    code = "import sys, dspatch; print(dspatch.__file__.startswith(sys.prefix))"
    assert copy.code(code, DSPATCH="1").out == "True\n"
    assert "of the wheel" in copy.dspatch("deactivate").out
    copy.pip("uninstall", "--yes", "--quiet", "dspatch")
    assert copy.files() == installs.empty(base).files()
