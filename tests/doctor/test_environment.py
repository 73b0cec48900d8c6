"""dspatch itself, what it needs, its settings, torch: fine, and each way of not being so."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dspatch.doctor import child
from tests.doctor.visits import make_metadata, make_package, make_world, visit
from tests.support import installs
from tests.support.installs import Environment
from tests.support.trees import roles


def test_all_well(editable: Environment, home: Path) -> None:
    found = visit(editable, home)
    assert found.code == 0
    fine = {id for id, status in found.statuses.items() if status == "OK"}
    assert fine == {
        "dspatch.installed", "dspatch.wrapt", "dspatch.requirements", "dspatch.matrix", "settings.switch", "settings.values",
        "python.starts", "torch.imports", "deepspeed.installed", "deepspeed.copies", "deepspeed.imports", "patches.others",
        "patches.order", "startup.files", "startup.sitecustomize", "launcher.forwards",
    }  # fmt: skip
    assert "an editable install" in found.check("dspatch.installed", "OK")
    assert "zlib-ng " in found.check("dspatch.requirements", "OK")
    assert found.check("torch.imports", "OK").startswith("torch 2.0+fake ")
    assert found.data["versions"]["deepspeed"] == roles()["newest"]
    assert found.data["versions"]["torch"] == "2.0"


def test_only_the_folder_on_the_path(base: Path, world: Path, home: Path) -> None:
    bare = replace(installs.empty(base), path=(installs.source_tree(base), world))
    found = visit(bare, home)
    assert found.code == 1
    assert "dspatch is not installed" in found.check("dspatch.installed", "FAIL")
    assert "dspatch.patches cannot be imported" in found.check("dspatch.matrix", "FAIL")
    assert "no matrix" in found.check("deepspeed.sites", "SKIP")
    assert "no matrix" in found.check("catalogue.faults", "SKIP")


def test_two_copies_of_dspatch(editable: Environment, base: Path, home: Path, tmp_path: Path) -> None:
    shutil.copytree(installs.source_tree(base) / "dspatch", tmp_path / "second" / "dspatch")
    behind = replace(editable, path=(installs.editable_tree(base), tmp_path / "second", *editable.path))
    assert "2 copies on the path" in visit(behind, home).check("dspatch.installed", "WARN")


def test_wrapt_too_old_broken_or_gone(site: Environment, world: Path, home: Path, tmp_path: Path) -> None:
    old = replace(site, path=(make_metadata(tmp_path / "old", "wrapt", "0.9"), world))
    assert "wrapt is 0.9, dspatch needs >=" in visit(old, home).check("dspatch.wrapt", "FAIL")
    broken = replace(site, path=(make_package(tmp_path / "broken", "wrapt", code="raise OSError('no symbol')"), world))
    found = visit(broken, home)
    assert found.code == 1
    assert "wrapt cannot be imported: OSError: no symbol" in found.check("dspatch.wrapt", "FAIL")
    assert "dspatch could not start" in found.check("deepspeed.imports", "FAIL")
    for left in site.site.glob("wrapt*"):
        left.unlink()
    assert "wrapt is not installed" in visit(site, home).check("dspatch.wrapt", "FAIL")


def test_other_requirements(site: Environment, world: Path, home: Path, tmp_path: Path) -> None:
    for left in site.site.glob("zlib_ng*"):
        left.unlink()
    found = visit(site, home)
    assert "zlib-ng is not installed: checksums" in found.check("dspatch.requirements", "WARN")
    assert found.code == 0
    old = replace(site, path=(make_metadata(tmp_path / "old", "packaging", "1.0"), world))
    assert "packaging is 1.0" in visit(old, home).check("dspatch.requirements", "FAIL")


@pytest.mark.parametrize("name", ["yaml", "packaging"])
def test_a_requirement_that_cannot_be_imported(name: str, editable: Environment, home: Path, tmp_path: Path) -> None:
    make_package(tmp_path / "broken", name, code="raise ImportError('half a package')")
    found = visit(replace(editable, path=(tmp_path / "broken", *editable.path)), home)
    assert found.code == 1
    assert "half a package" in found.check("dspatch.matrix", "FAIL")


def test_switched_off(editable: Environment, home: Path) -> None:
    found = visit(editable, home, DSPATCH="off")
    assert "nothing is patched" in found.check("settings.switch", "WARN")
    found.check("deepspeed.imports", "OK")
    assert {one["state"] for one in found.data["sites"]} == {"applied", "skipped"}, "what would be with it on"
    assert "DSPATCH=on" in visit(editable, home, DSPATCH="on").check("settings.values", "OK")


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("DSPATCH_MODE", "strcit", "expected: one of strict, warn, observe"),
        ("DSPATCH_TIMEOUT", "soon", "a number, at least 1"),
        ("DSPATCH_MOOD", "strict", "is not a dspatch variable"),
        ("DSPATCH", "maybe", "DSPATCH has a value that is not allowed"),
        ("DSPATCH_DISABLE", "load-guard,no-such", "names no patch of the matrix: no-such"),
        ("DSPATCH_EXPECT", "moments=gone", "DSPATCH_EXPECT"),
    ],
)
def test_wrong_values(variable: str, value: str, text: str, editable: Environment, home: Path) -> None:
    found = visit(editable, home, **{variable: value})
    assert found.code == 1
    said = found.check("settings.values", "FAIL")
    assert text in said
    assert said.endswith(f"correct or unset {variable}")
    found.check("deepspeed.imports", "OK")


def test_wrong_values_are_all_told(editable: Environment, home: Path) -> None:
    found = visit(editable, home, "--verbose", DSPATCH_MODE="x", DSPATCH_TAGS="y")
    (one,) = (one for one in found.data["checks"] if one["id"] == "settings.values")
    assert len(one["evidence"]) == 2
    assert "DSPATCH_MODE, DSPATCH_TAGS" in one["fix"]


@pytest.mark.parametrize("end", ["import os; os._exit(3)", "import os; os.kill(os.getpid(), 11)"])
def test_a_process_that_dies(end: str, editable: Environment, home: Path, tmp_path: Path) -> None:
    found = visit(replace(editable, path=(make_world(tmp_path / "dies", first=end),)), home)
    told = "exit code 3" if "_exit" in end else "signal 11"
    assert told in found.check("python.starts", "WARN")
    assert told in found.check("deepspeed.imports", "FAIL")
    found.check("torch.imports", "OK")
    found.check("patches.fit", "SKIP")
    found.check("deepspeed.sites", "WARN")


def test_a_process_that_hangs_is_ended(tmp_path: Path) -> None:
    world = make_world(tmp_path, first="import time; time.sleep(600)")
    found = child.look({"PYTHONPATH": str(world)}, limit=3.0)
    assert found.ended == "it took longer than 3 s"
    assert found.error("deepspeed") == found.ended
    assert found.error("torch") == ""


def test_a_python_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child.sys, "executable", "/no/such/python")
    found = child.look({})
    assert "no process could be started" in found.ended
    assert (found.path, found.error("torch")) == ((), found.ended)


def test_torch_broken_or_absent(editable: Environment, home: Path, tmp_path: Path) -> None:
    broken = make_world(tmp_path / "broken", first="import torch")
    make_package(broken, "torch", code="raise OSError('libcudart.so: cannot open')")
    found = visit(replace(editable, path=(broken,)), home)
    assert found.code == 1
    assert "torch 2.0 cannot be imported: OSError: libcudart.so" in found.check("torch.imports", "FAIL")
    assert "see torch.imports" in found.check("deepspeed.imports", "FAIL")
    assert "libcudart.so" not in found.check("settings.values", "OK")
    shutil.rmtree(broken / "torch")
    shutil.rmtree(broken / "torch-2.0.dist-info")
    found = visit(replace(editable, path=(broken,)), home)
    assert "torch is not installed" in found.check("torch.imports", "FAIL")
    assert found.data["versions"]["torch"] is None
