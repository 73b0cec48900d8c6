"""An old DeepSpeed under a newer torch, which refuses the classes that this DeepSpeed writes into every shard (G16)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import damage
from tests.support.pool import Pools
from tests.support.results import RankResult, values, warnings_of

#: The pool's usual environment switches torch's refusal off.
REFUSING = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": None}


def run(pools: Pools, scenario: str, **kwargs: Any) -> list[RankResult]:
    return pools.get("oldest", 2, env=REFUSING).run(f"tests.faults.scenarios.loading:{scenario}", timeout=120, **kwargs)


@pytest.mark.parametrize("stage", [2, 3])
def test_the_refusal_is_explained(pools: Pools, tmp_path: Path, stage: int) -> None:
    values(run(pools, "save", folder=str(tmp_path), engine={"stage": stage}, tags=["a"]))
    for one in values(run(pools, "load", folder=str(tmp_path), engine={"stage": stage}, settings={})):
        assert one["error"][0] == "UnpicklingError"
        if sys.version_info >= (3, 11):
            assert any("deepspeed.runtime" in note and "DSPATCH_TRUST=deepspeed" in note for note in one["notes"])


@pytest.mark.parametrize(("stage", "precision"), [(1, "bf16"), (2, "fp16"), (3, "bf16"), (3, "fp16")])
def test_own_classes_are_let_through(pools: Pools, tmp_path: Path, stage: int, precision: str) -> None:
    engine = {"stage": stage, "precision": precision}
    values(run(pools, "save", folder=str(tmp_path), engine=engine, tags=["a"]))
    results = run(pools, "load", folder=str(tmp_path), engine=engine, settings={"trust": "deepspeed"}, probe=True)
    for one in values(results):
        assert one["error"] is None
        assert set(one["report"].values()) == {"restored"}
        assert one["moved"] == []
    assert warnings_of(results) == []


def test_nothing_else_is_let_through(pools: Pools, tmp_path: Path) -> None:
    values(run(pools, "save", folder=str(tmp_path), engine={"stage": 2}, tags=["a"]))
    damage.rewrite(damage.model_file(tmp_path / "a"), lambda tree: tree.update(extra=Path("somebody's")))
    results = run(pools, "load", folder=str(tmp_path), engine={"stage": 2}, settings={"trust": "deepspeed"})
    for one in values(results):
        assert one["error"][0] == "UnpicklingError"
        assert "pathlib" in one["error"][1]
        if sys.version_info >= (3, 11):
            assert any("none of DeepSpeed's own classes" in note for note in one["notes"])
