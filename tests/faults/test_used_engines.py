"""Loads into an engine that has trained: rollbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Pools
from tests.support.results import RankResult, values, warnings_of

whole = pytest.mark.whole
BF16_OPTIMIZER: dict[str, Any] = {"stage": 1, "config": {"data_types": {"grad_accum_dtype": "fp32"}}}
KINDS: list[Any] = [
    {"stage": 2}, {"stage": 3}, *(pytest.param(one, marks=whole) for one in (
        {"stage": 0}, {"stage": 0, "precision": "fp32"}, {"stage": 1}, {"stage": 2, "offload": "cpu"}, BF16_OPTIMIZER,
        {"stage": 3, "offload": "cpu"}, {"stage": 3, "param_offload": "cpu", "offload": "cpu"})),
]  # fmt: skip


def roll_back(pools: Pools, folder: Path, engine: Any, role: str = "newest", **kwargs: Any) -> list[RankResult]:
    return pools.get(role, 2).run(
        "tests.faults.scenarios.used:roll_back", timeout=60, folder=str(folder), engine=engine, **kwargs
    )


@pytest.mark.parametrize("role", ["newest", pytest.param("oldest", marks=whole)])
@pytest.mark.parametrize("engine", KINDS, ids=str)
def test_a_trained_engine_goes_back(pools: Pools, tmp_path: Path, engine: dict[str, Any], role: str) -> None:
    """G8: upstream's documentation rules it out at stage 3; it is measured, and the next step is that of a fresh engine."""
    results = roll_back(pools, tmp_path, engine, role, settings={})
    for one in values(results):
        assert one["error"] is None, one["error"]
        assert set(one["report"].values()) == {"restored"}
        assert one["same"]
        assert "data order, random-number state" in one["table"], "what no checkpoint has is said in every report (F5)"
    assert warnings_of(results) == []


@pytest.mark.parametrize("role", ["newest", pytest.param("oldest", marks=whole)])
@pytest.mark.parametrize("engine", KINDS, ids=str)
def test_accumulated_gradients_are_told(pools: Pools, tmp_path: Path, engine: dict[str, Any], role: str) -> None:
    """F4: two of four micro-batches ran before the load, and upstream steps after two more."""
    results = roll_back(pools, tmp_path, engine, role, settings={}, micro=2)
    for one in values(results):
        assert one["error"] is None, one["error"]
        assert not one["same"], "the release has the fault"
    said = warnings_of(results)
    assert len(said) == 1
    assert "2 of 4 micro-batches" in said[0]
    if role == "newest":
        quiet = roll_back(pools, tmp_path / "observe", engine, role, settings={"mode": "observe"}, micro=2)
        assert warnings_of(quiet) == []
        assert any("2 of 4 micro-batches" in text for text in quiet[0].said(20))


@pytest.mark.parametrize("role", ["newest", pytest.param("oldest", marks=whole)])
@pytest.mark.parametrize(("saved", "now"), [(True, True), (True, False), (False, True)])
def test_a_curriculum_sampler(pools: Pools, tmp_path: Path, saved: bool, now: bool, role: str) -> None:
    """F6: restored, without a place, or absent; a sampler of DeepSpeed's own, with data."""
    results = pools.get(role, 2).run(
        "tests.faults.scenarios.used:sampled", timeout=60, folder=str(tmp_path), saved=saved, now=now
    )
    for one in values(results):
        if not saved:
            assert one["error"] is not None
            assert one["error"][0] == "LoadRefused"
            assert "data_sampler" in one["error"][1]
            continue
        assert one["error"] is None, one["error"]
        assert one["samples"] == ([32, 32] if now else [])
        assert one["report"]["data_sampler"] == ("restored" if now else "not checked")
    assert len([text for text in warnings_of(results) if "data_sampler" in text]) == (saved and not now)
