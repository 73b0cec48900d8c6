"""Which DeepSpeed, whether it fits, who else is on it, who came first; and the faults that it is known to have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dspatch.doctor.catalogue import CHECKS
from dspatch.doctor.checks import run_all
from dspatch.doctor.here import Here
from dspatch.patching.matrix import Fault, Matrix, load
from dspatch.patching.ranges import Range
from tests.doctor.visits import make_metadata, make_world, visit
from tests.support.installs import Environment
from tests.support.paths import MATRIX
from tests.support.trees import roles

IDS = list(load(MATRIX).ids())


def test_no_deepspeed(editable: Environment, home: Path) -> None:
    found = visit(replace(editable, path=()), home)
    assert found.code == 1
    assert "deepspeed is not installed" in found.check("deepspeed.installed", "FAIL")
    for id in ("deepspeed.copies", "deepspeed.sites", "deepspeed.imports", "patches.fit", "patches.others",
               "catalogue.faults"):  # fmt: skip
        found.check(id, "SKIP")
    assert found.data["sites"] == found.data["faults"] == []
    assert found.data["versions"]["deepspeed"] is None


@pytest.mark.parametrize("version", ["", "0.0.0"])
def test_a_source_tree(version: str, editable: Environment, home: Path, tmp_path: Path) -> None:
    found = visit(replace(editable, path=(make_world(tmp_path / "tree", version=version),)), home)
    said = found.check("deepspeed.installed", "WARN")
    assert "source tree" in said
    assert ("calls itself 0.0.0" in said) == bool(version)
    assert "cannot be trusted" in found.check("catalogue.faults", "SKIP")
    assert (found.data["versions"]["deepspeed"], found.data["faults"]) == ("source tree", [])


def test_two_deepspeeds(editable: Environment, home: Path, tmp_path: Path) -> None:
    second = make_world(tmp_path / "second")
    assert "2 DeepSpeeds on the path" in visit(replace(editable, path=(*editable.path, second)), home).check(
        "deepspeed.copies", "WARN"
    )
    make_metadata(tmp_path / "metadata", "deepspeed", "1.0")  # a version that no package lies beside
    alone = visit(replace(editable, path=(tmp_path / "metadata", *editable.path)), home)
    assert roles()["newest"] in alone.check("deepspeed.installed", "OK")


def test_one_that_only_a_finder_knows(site: Environment, home: Path, tmp_path: Path) -> None:
    """As editable installs of it may be: no entry of the path holds the package."""
    world = make_world(tmp_path / "source", version="")
    (site.site / "finder.py").write_text(
        "import importlib.util, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'deepspeed':\n"
        f"            return importlib.util.spec_from_file_location(name, {str(world / 'deepspeed' / '__init__.py')!r})\n"
        "sys.meta_path.append(Finder())\n"
    )
    (site.site / "zz-finder.pth").write_text("import finder\n")
    found = visit(replace(site, path=()), home)
    assert "source tree in .../source" in found.check("deepspeed.installed", "WARN")
    found.check("deepspeed.copies", "OK")
    found.check("deepspeed.imports", "OK")


def test_functions_that_nobody_has_read(editable: Environment, home: Path) -> None:
    found = visit(editable, home)
    # The fake is of the newest release, for which patches of older releases alone are not needed.
    assert f"{len(IDS)} sites: {len(IDS) - 2} compatible, 2 not needed" in found.check("deepspeed.sites", "WARN")
    assert "on functions that dspatch has not read: " in found.check("patches.fit", "WARN")
    assert [one["patch"] for one in found.data["sites"]] == IDS
    needed = [one for one in found.data["sites"] if one["tier"] != "not needed"]
    assert {one["tier"] for one in needed} == {"compatible"}
    assert {one["state"] for one in needed} == {"applied", "skipped"}


def test_a_function_that_is_gone(editable: Environment, home: Path, tmp_path: Path) -> None:
    found = visit(replace(editable, path=(make_world(tmp_path / "gone", without="load_checkpoint"),)), home)
    assert found.code == 1
    assert "(site gone)" in found.check("deepspeed.sites", "FAIL")
    # Six patches share this function.
    assert "6 of " in found.check("patches.fit", "FAIL")
    lost = {one["patch"]: one for one in found.data["sites"] if one["tier"] == "incompatible"}
    assert set(lost) == {"load-guard", "fresh-masters", "first-rate", "module-only", "no-masters", "commit-first"}
    assert {one["state"] for one in lost.values()} == {"skipped"}


def test_a_parameter_that_is_gone(editable: Environment, home: Path, tmp_path: Path) -> None:
    world = make_world(tmp_path / "changed")
    engine = world / "deepspeed" / "runtime" / "engine.py"
    engine.write_text(
        engine.read_text().replace("def load_checkpoint(self, load_dir=None, ", "def load_checkpoint(self, ")
    )
    found = visit(replace(editable, path=(world,)), home)
    assert "(new signature)" in found.check("deepspeed.sites", "FAIL")
    assert "has no parameter load_dir" in found.check("patches.fit", "FAIL")


def test_source_that_is_no_python(editable: Environment, home: Path, tmp_path: Path) -> None:
    world = make_world(tmp_path / "changed")
    (world / "deepspeed" / "runtime" / "engine.py").write_text("def (:\n")
    found = visit(replace(editable, path=(world,)), home)
    assert "cannot be read" in found.check("deepspeed.sites", "FAIL")
    assert "SyntaxError" in found.check("deepspeed.imports", "FAIL")


def test_one_that_cannot_be_imported(editable: Environment, home: Path, tmp_path: Path) -> None:
    found = visit(
        replace(editable, path=(make_world(tmp_path / "broken", first="raise ImportError('no accelerator')"),)), home
    )
    assert found.code == 1
    assert "ImportError: no accelerator" in found.check("deepspeed.imports", "FAIL")
    found.check("torch.imports", "OK")
    found.check("patches.fit", "SKIP")
    assert {one["state"] for one in found.data["sites"]} == {"read"}, "what the source says is still there"


def test_patches_that_are_switched_off(editable: Environment, home: Path) -> None:
    found = visit(editable, home, DSPATCH_DISABLE="load-guard")
    (one,) = (one for one in found.data["sites"] if one["patch"] == "load-guard")
    assert (one["state"], one["reason"]) == ("skipped", "DSPATCH_DISABLE")


#: How other tools get onto a function, each in a module named tracer.
OTHERS = {
    "a closure": """
        @functools.wraps(inner)
        def around(*args, **kwargs):
            return inner(*args, **kwargs)
        """,
    "a replacement": """
        def around(self, load_dir, tag=None):
            return None
        """,
    "a proxy": """
        import wrapt
        around = wrapt.FunctionWrapper(inner, lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs))
        around._self_wrapper.__module__ = "tracer"
        """,
}


@pytest.mark.parametrize("kind", OTHERS)
def test_others_on_the_same_function(kind: str, editable: Environment, home: Path, tmp_path: Path) -> None:
    from textwrap import dedent

    world = make_world(tmp_path / "others", last="import tracer\n")
    (world / "tracer.py").write_text(
        "import functools\nfrom deepspeed.runtime.engine import DeepSpeedEngine\n"
        "inner = vars(DeepSpeedEngine)['load_checkpoint']\n"
        f"{dedent(OTHERS[kind])}\nDeepSpeedEngine.load_checkpoint = around\n"
    )
    said = visit(replace(editable, path=(world,)), home).check("patches.others", "WARN")
    assert said.startswith("1 of the functions are wrapped or replaced by others too: tracer ")


def test_deepspeed_before_dspatch(editable: Environment, wheel: Environment, home: Path, tmp_path: Path) -> None:
    early = tmp_path / "early"
    early.mkdir()
    (early / "sitecustomize.py").write_text("import deepspeed\n")
    found = visit(replace(editable, path=(early, *editable.path)), home)
    assert "before dspatch" in found.check("patches.order", "WARN")
    found = visit(replace(wheel, path=(early, *wheel.path)), home)
    assert "after dspatch" in found.check("patches.order", "OK"), "the startup file is read before sitecustomize"


# --- the catalogue ----------------------------------------------------------------------------------------------------


def judged(version: str, *faults: Fault) -> tuple[str, str]:
    """The catalogue's check of a DeepSpeed of that version, with these faults."""
    here = Here({}, Path("/"), Path("/"))
    here.__dict__.update(version=version, deepspeed=object(), _matrix=(Matrix((), {}, faults), ""))
    ((_, answer),) = run_all(CHECKS, here)
    return answer.status, answer.line


def fault(does: str, *ranges: str) -> Fault:
    return Fault("A1", "a loss", tuple(map(Range.parse, ranges or (">=1.0,<=2.0",))), does)


def test_faults_that_are_all_taken_care_of() -> None:
    assert judged("1.5", fault("caught"), fault("caught"), fault("loud")) == ("OK", "3 known faults: 2 caught, 1 loud")
    assert judged("1.5", fault("caught", ">=1.6,<=2.0"), fault("loud")) == ("OK", "1 known faults: 1 loud")


@pytest.mark.parametrize("does", ["not yet", "not shown"])
def test_faults_that_are_not(does: str) -> None:
    assert judged("1.5", fault("caught"), fault(does)) == ("WARN", f"2 known faults: 1 caught, 1 {does}")


@pytest.mark.parametrize(("version", "count"), [("3.0", 1), ("0.5", 0)])
def test_a_release_that_was_not_read(version: str, count: int) -> None:
    status, line = judged(version, fault("caught"))
    assert status == "WARN"
    assert line.startswith(f"{count} known faults") and f"release {version} was not read" in line


def test_faults_of_the_installed_release(editable: Environment, home: Path) -> None:
    found = visit(editable, home)
    newest = load(MATRIX).faults_of(roles()["newest"])
    assert [(one["id"], one["does"]) for one in found.data["faults"]] == [(one.id, one.does) for one in newest]
    assert "A3" in {one["id"] for one in found.data["faults"]}
    assert "not yet" in found.check("catalogue.faults", "WARN")
