"""Experts, pipelines: loaded as upstream loads them, and said to be not checked, never restored. An engine without optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pool import Pools
from tests.support.results import values, warnings_of

LOAD = "tests.faults.scenarios.uncovered:load"


@pytest.mark.parametrize("role", ["oldest", "newest"])
@pytest.mark.parametrize(("kind", "reason"), [("experts", "mixture of experts"), ("pipeline", "pipeline")])
def test_not_checked_is_one_warning(pools: Pools, tmp_path: Path, kind: str, reason: str, role: str) -> None:
    results = pools.get(role, 2).run(LOAD, timeout=120, folder=str(tmp_path), kind=kind)
    for one in values(results):
        assert one["path"]
        assert one["weights"]
        assert set(one["outcomes"].values()) == {f"not checked ({reason})"}
    said = warnings_of(results)
    assert len(said) == 1
    assert reason in said[0]


@pytest.mark.parametrize("role", ["oldest", "newest"])
def test_an_engine_without_optimizer(pools: Pools, tmp_path: Path, role: str) -> None:
    results = pools.get(role, 2).run(LOAD, timeout=120, folder=str(tmp_path), kind="bare")
    for one in values(results):
        assert one["weights"]
        assert one["outcomes"] == {"weights": "restored", "counters": "restored"}
    assert warnings_of(results) == []
