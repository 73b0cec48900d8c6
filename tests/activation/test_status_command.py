"""`dspatch status`: one row per patch, and an exit code that a script can use."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dspatch.patching import matrix
from tests.activation.fakes import make_deepspeed
from tests.support.environment import free_port, rank_environment
from tests.support.installs import Environment, run
from tests.support.paths import MATRIX, ROOT
from tests.support.trees import tree

IDS = list(matrix.load(MATRIX).ids())


def test_all_well(editable: Environment) -> None:
    done = editable.dspatch("status")
    assert done.code == 0, done.err
    head, *rows = done.out.splitlines()
    assert head.startswith("DeepSpeed source tree in ") and head.endswith("__init__.py")
    assert [row.split()[0] for row in rows] == IDS
    assert "applied" in done.out


def test_for_programs(editable: Environment) -> None:
    found = json.loads(editable.dspatch("status", "--json").out)
    assert [row["patch"] for row in found["rows"]] == IDS
    assert found["switch"] == "unset"
    assert {row["state"] for row in found["rows"]} == {"applied", "skipped"}


def test_a_patch_that_does_not_fit_is_exit_code_1(editable: Environment, tmp_path: Path) -> None:
    other = replace(editable, path=(make_deepspeed(tmp_path, without="load_checkpoint"),))
    done = other.dspatch("status")
    assert done.code == 1
    (row,) = (line for line in done.out.splitlines() if line.startswith("load-guard "))
    assert "skipped" in row and "does not exist" in row


@pytest.mark.parametrize("first", ["raise ImportError('no accelerator')", "import sys; sys.exit(0)"])
def test_a_deepspeed_that_cannot_be_imported_is_exit_code_3(first: str, editable: Environment, tmp_path: Path) -> None:
    done = replace(editable, path=(make_deepspeed(tmp_path, first=first),)).dspatch("status")
    assert (done.code, done.out) == (3, "")
    assert "deepspeed could not be imported" in done.err
    assert ("no accelerator" in done.err) == ("accelerator" in first)


def test_no_deepspeed_is_exit_code_3(editable: Environment) -> None:
    done = replace(editable, path=()).dspatch("status")
    assert done.code == 3 and "No module named 'deepspeed'" in done.err


def test_what_deepspeed_prints_is_not_in_the_way(editable: Environment, tmp_path: Path) -> None:
    noisy = make_deepspeed(tmp_path, first="import sys; print('[INFO] {}'); print('warning', file=sys.stderr)")
    done = replace(editable, path=(noisy,)).dspatch("status", "--json")
    assert done.code == 0 and len(json.loads(done.out)["rows"]) == len(IDS)


def test_switched_off(editable: Environment) -> None:
    done = editable.dspatch("status", DSPATCH="0")
    assert done.code == 0
    assert "DSPATCH is set to an off word: nothing is patched" in done.out and "applied" not in done.out
    assert "off word" not in editable.dspatch("status", DSPATCH="1").out


def test_switched_off_one_by_one(editable: Environment) -> None:
    done = editable.dspatch("status", DSPATCH_DISABLE="load-guard")
    (row,) = (line for line in done.out.splitlines() if line.startswith("load-guard "))
    assert "skipped" in row and "DSPATCH_DISABLE" in row and "applied" in done.out


def test_a_real_release(checkout: Environment) -> None:
    real = tree("oldest")
    environ = {**rank_environment(real, rank=0, world=1, port=free_port()), "PYTHONPATH": None}
    done = run([checkout.python, "-m", "dspatch", "status"], real.path, ROOT, **environ)
    assert done.code == 0, done.out + done.err
    assert done.out.startswith(f"DeepSpeed {real.version} in {real.path}")
    assert "applied" in done.out
