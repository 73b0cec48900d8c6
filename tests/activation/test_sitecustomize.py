"""Other people's sitecustomize: never overwritten, and run as if ours were not in front of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dspatch.activation.sites import PRIVATE_SITE
from tests.support import installs
from tests.support.installs import Environment
from tests.support.paths import ROOT

NOTE = "import builtins; builtins.noted = [*getattr(builtins, 'noted', []), {!r}]\n"
LOOK = "import deepspeed, look; print(look.guards(), *globals()['__builtins__'].__dict__.get('noted', ['nobody']))"


def with_sitecustomize(environment: Environment, folder: Path, text: str) -> Environment:
    """The environment with a sitecustomize of somebody else's on the path."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(text)
    return replace(environment, path=(folder, *environment.path))


def under_run(environment: Environment, code: str = LOOK, **environ: str) -> str:
    done = environment.dspatch("run", "--", str(environment.python), "-c", code, **environ)
    assert done.code == 0, done.err
    return done.out


def test_the_hidden_one_is_run_once(editable: Environment, tmp_path: Path) -> None:
    theirs = with_sitecustomize(editable, tmp_path / "theirs", NOTE.format("theirs"))
    assert theirs.code(LOOK).out == "0 theirs\n"
    assert under_run(theirs) == "1 theirs\n"
    assert under_run(editable) == "1 nobody\n"


def test_only_the_first_hidden_one_is_run(editable: Environment, tmp_path: Path) -> None:
    """Without ours there would be one, too."""
    second = with_sitecustomize(editable, tmp_path / "second", NOTE.format("second"))
    first = with_sitecustomize(second, tmp_path / "first", NOTE.format("first"))
    assert first.code(LOOK).out == "0 first\n"
    assert under_run(first) == "1 first\n"


def test_it_is_the_module_that_is_left(editable: Environment, tmp_path: Path) -> None:
    theirs = with_sitecustomize(editable, tmp_path / "theirs", "HERE = __file__, __name__\n")
    code = "import sitecustomize; print(*sitecustomize.HERE)"
    assert under_run(theirs, code) == f"{tmp_path / 'theirs' / 'sitecustomize.py'} sitecustomize\n"


def test_it_sees_what_site_gave_it(editable: Environment, tmp_path: Path) -> None:
    """A package, relative data, `sys.argv`: nothing may be different."""
    theirs = replace(editable, path=(tmp_path, *editable.path))
    package = tmp_path / "sitecustomize"
    package.mkdir()
    (package / "__init__.py").write_text("from sitecustomize.part import VALUE\n")
    (package / "part.py").write_text("VALUE = 'package'\n")
    code = "import sitecustomize; print(sitecustomize.VALUE)"
    assert theirs.code(code).out == under_run(theirs, code) == "package\n"


@pytest.mark.parametrize("fault", ["raise RuntimeError('theirs')", "import no_such_module", "this is no Python"])
def test_one_that_fails_is_reported_by_python_and_dspatch_is_on(
    fault: str, editable: Environment, tmp_path: Path
) -> None:
    theirs = with_sitecustomize(editable, tmp_path / "theirs", fault)
    plain = theirs.code(LOOK)
    ours = theirs.dspatch("run", "--", str(theirs.python), "-c", LOOK)
    assert (plain.out, ours.out) == ("0 nobody\n", "1 nobody\n")
    last = plain.err.strip().splitlines()[-1]
    assert last and last in ours.err


def test_another_interpreter_runs_its_own(editable: Environment, tmp_path: Path) -> None:
    theirs = with_sitecustomize(editable, tmp_path / "theirs", NOTE.format("theirs"))
    other = editable.copy(tmp_path / "other")
    done = theirs.dspatch("run", "--", str(other.python), "-c", LOOK)
    assert done.out == "0 theirs\n", done.err


def test_nested_runs_run_it_once(editable: Environment, tmp_path: Path) -> None:
    theirs = with_sitecustomize(editable, tmp_path / "theirs", NOTE.format("theirs"))
    inner = [str(theirs.python), "-m", "dspatch", "run", "--", str(theirs.python), "-c", LOOK]
    assert theirs.dspatch("run", "--", *inner).out == "1 theirs\n"


def test_our_folder_under_another_name_is_not_run_again(editable: Environment, tmp_path: Path) -> None:
    theirs = with_sitecustomize(editable, tmp_path / "theirs", NOTE.format("theirs"))
    link = tmp_path / "link"
    link.symlink_to(installs.editable_tree(editable.folder.parent) / PRIVATE_SITE.relative_to(ROOT))
    assert under_run(replace(theirs, path=(link, *theirs.path))) == "1 theirs\n"


def test_the_kill_switch_leaves_it_to_python(editable: Environment, tmp_path: Path) -> None:
    theirs = with_sitecustomize(editable, tmp_path / "theirs", NOTE.format("theirs"))
    assert under_run(theirs, DSPATCH="0") == "0 theirs\n"


def test_one_that_imports_deepspeed_is_guarded(editable: Environment, tmp_path: Path) -> None:
    theirs = with_sitecustomize(editable, tmp_path / "theirs", "import deepspeed\n")
    assert under_run(theirs) == "1 nobody\n"


def test_the_copy_in_site_packages_does_the_same(editable: Environment, tmp_path: Path) -> None:
    """`dspatch activate --sitecustomize`, with somebody's further back on the path, and under `dspatch run` on top."""
    ours = editable.copy(tmp_path / "env")
    back = tmp_path / "back"
    back.mkdir()
    (back / "sitecustomize.py").write_text(NOTE.format("theirs"))
    (ours.site / "zz-back.pth").write_text(f"{back}\n")  # a path that comes after site-packages
    assert ours.code(LOOK).out == "0 theirs\n"
    assert ours.dspatch("activate", "--sitecustomize").code == 0
    assert ours.code(LOOK).out == "0 theirs\n"
    assert ours.code(LOOK, DSPATCH="1").out == "1 theirs\n"
    assert under_run(ours) == "1 theirs\n"
    for name in ("dspatch.pth", "dspatch.start"):  # so that the sitecustomize is alone
        (ours.site / name).unlink()
    assert ours.code(LOOK, DSPATCH="1").out == "1 theirs\n"
    assert ours.code(LOOK, DSPATCH="0").out == "0 theirs\n"
