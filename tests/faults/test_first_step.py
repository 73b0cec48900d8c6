"""Faults that only the first step after a load brings to light are told before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Pools
from tests.support.results import RankResult, values, warnings_of

SCENARIOS = "tests.faults.scenarios.first_step:"
KINDS: list[dict[str, Any]] = [{"stage": 1}, {"stage": 2, "precision": "fp16", "offload": "cpu"}, {"stage": 0}]


def replaced(pools: Pools, engine: dict[str, Any], role: str = "newest", **kwargs: Any) -> list[RankResult]:
    asked = {"settings": {}, "refresh": False, "same": False, **kwargs}
    return pools.get(role, 2).run(SCENARIOS + "replace_weights", timeout=60, engine=engine, **asked)


@pytest.mark.parametrize("role", ["oldest", "newest"])
@pytest.mark.parametrize("engine", KINDS, ids=str)
def test_weights_behind_the_optimizer_are_told_at_once(pools: Pools, engine: dict[str, Any], role: str) -> None:
    results = replaced(pools, engine, role)
    assert all(one["moved"] for one in values(results)), "the first step undoes it"
    for one in results:
        said = [text for text in one.said() if "the first step undoes it" in text]
        assert len(said) == 1
        assert "dspatch.refresh_masters(engine)" in said[0]


@pytest.mark.parametrize("engine", KINDS, ids=str)
def test_weights_behind_the_optimizer_with_the_watch_off(pools: Pools, engine: dict[str, Any]) -> None:
    results = replaced(pools, engine, settings={"disable": "weights-watch"})
    assert all(one["moved"] for one in values(results))
    assert [text for text in warnings_of(results) if "undoes" in text] == []


@pytest.mark.parametrize("engine", [*KINDS, {"stage": 0, "precision": "fp32"}], ids=str)
def test_the_same_weights_again_are_fine(pools: Pools, engine: dict[str, Any]) -> None:
    results = replaced(pools, engine, same=True)
    assert not any(one["moved"] for one in values(results))
    assert warnings_of(results) == []


@pytest.mark.parametrize("engine", KINDS, ids=str)
def test_refreshed_masters_keep_the_weights(pools: Pools, engine: dict[str, Any]) -> None:
    for one in values(replaced(pools, engine, refresh=True)):
        assert not one["moved"]
        assert not one["named"], "a copy of the module can be pickled, and read without dspatch"


def outside(pools: Pools, folder: Path, **kwargs: Any) -> list[RankResult]:
    return pools.get("newest", 2).run(SCENARIOS + "outside", timeout=60, folder=str(folder), **kwargs)


def test_a_scheduler_outside_that_nobody_restored(pools: Pools, tmp_path: Path) -> None:
    results = outside(pools, tmp_path, restore=False, steps=4)
    said = warnings_of(results)
    assert len(said) == 1
    assert said[0].startswith("rank 0")
    assert "LambdaLR outside the engine was not restored" in said[0]
    assert "0.0015" in said[0], "of the checkpoint: 0.003 x 0.5"
    assert "0.0003" in said[0], "of the fresh one: 0.003 x 0.1"
    assert [one["hooks"] for one in values(results)] == [0, 0], "gone after its use"


@pytest.mark.parametrize(("restore", "steps"), [(True, 4), (False, 0)])
def test_a_scheduler_outside_that_goes_on(pools: Pools, tmp_path: Path, restore: bool, steps: int) -> None:
    results = outside(pools, tmp_path, restore=restore, steps=steps)
    values(results)
    assert warnings_of(results) == []
    assert any("no DeepSpeed checkpoint has its state" in text for text in results[0].said(20))
