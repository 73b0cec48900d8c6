"""The wheel in a folder on PYTHONPATH (`pip install --target`), where Python reads no startup files."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import installs
from tests.support.installs import Environment

LOOK = "import deepspeed, look; print(look.guards())"


@pytest.fixture
def target(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, deepspeed: Path) -> Environment:
    """An environment without dspatch, and dspatch in a folder in front of it."""
    base = tmp_path_factory.getbasetemp()
    folder = tmp_path / "target"
    shutil.unpack_archive(installs.built(base, "wheel"), folder, "zip")
    return replace(installs.empty(base).copy(tmp_path / "env"), path=(folder, deepspeed))


def test_the_variable_alone_is_not_enough(target: Environment) -> None:
    assert target.code(LOOK, DSPATCH="1").out == "0\n"
    assert target.code(f"import dspatch; {LOOK}").out == "1\n"


def test_run(target: Environment) -> None:
    assert target.dspatch("run", "--", str(target.python), "-c", LOOK).out == "1\n"


def test_activate(target: Environment) -> None:
    before = target.files()
    done = target.dspatch("activate")
    assert done.code == 0 and done.out.count("wrote") == 3, done.err
    assert target.code(LOOK, DSPATCH="1").out == "1\n"
    elsewhere = replace(target, path=target.path[1:])
    done = elsewhere.code(LOOK, DSPATCH="1")
    assert done.out == "0\n" and "dspatch is not installed here" in done.err
    assert target.dspatch("deactivate").out.count("removed") == 3
    assert target.files() == before and (target.path[0] / "dspatch.pth").exists()


def test_a_bare_copy_of_the_package_has_nothing_to_write(target: Environment) -> None:
    (target.path[0] / "dspatch.pth").unlink()
    done = target.dspatch("activate")
    assert (done.code, done.out) == (3, "")
    assert "dspatch.pth is not in" in done.err and "pip install" in done.err and "Traceback" not in done.err
