"""Loads without optimizer states that leave the masters of the fresh model, so that the first step undoes the load (A6, A7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Pools
from tests.support.results import RankResult, values, warnings_of

STALE = [("newest", "bf16"), ("newest", "fp16"), ("oldest", "fp16")]


def load(
    pools: Pools, folder: Path, role: str, engine: dict[str, Any], settings: dict[str, Any] | None, **kwargs: Any
) -> list[RankResult]:
    pool, scenarios = pools.get(role, 2), "tests.faults.scenarios.loading:"
    if not (folder / "a").exists():
        values(pool.run(scenarios + "save", timeout=120, folder=str(folder), engine=engine, tags=["a"]))
    return pool.run(
        scenarios + "load", timeout=120, folder=str(folder), engine=engine, settings=settings, probe=True,
        arguments={"load_optimizer_states": False, **kwargs},
    )  # fmt: skip


@pytest.mark.parametrize(("role", "precision"), STALE)
def test_stale_masters_are_made_from_the_loaded_weights(
    pools: Pools, tmp_path: Path, role: str, precision: str
) -> None:
    engine = {"stage": 0, "precision": precision}
    assert all(one["moved"] for one in values(load(pools, tmp_path, role, engine, None))), (
        "upstream: undone by one step"
    )
    results = load(pools, tmp_path, role, engine, {})
    for one in values(results):
        assert one["error"] is None
        assert one["moved"] == []
        assert one["report"]["weights"] == "restored"
        assert one["report"]["masters"] == "left out"
    assert len([text for text in warnings_of(results) if "partial load" in text]) == len(warnings_of(results)) == 1


@pytest.mark.parametrize(("role", "precision"), STALE)
def test_stale_masters_are_an_error_with_the_repair_off(
    pools: Pools, tmp_path: Path, role: str, precision: str
) -> None:
    engine = {"stage": 0, "precision": precision}
    for one in values(load(pools, tmp_path, role, engine, {"disable": "fresh-masters"})):
        assert one["error"][0] == "LoadIncomplete"
        assert "the first step would undo the load" in one["error"][1]


@pytest.mark.parametrize("engine", [{"stage": 2}, {"stage": 3}, {"stage": 1, "precision": "fp16"}], ids=str)
def test_stale_masters_at_other_stages(pools: Pools, tmp_path: Path, engine: dict[str, Any]) -> None:
    """A7."""
    assert all(one["moved"] for one in values(load(pools, tmp_path, "first", engine, None))), "upstream: undone by one step"
    for one in values(load(pools, tmp_path, "first", engine, {"disable": "fresh-masters"})):
        assert one["error"][0] == "LoadIncomplete"
        assert "the first step would undo the load" in one["error"][1] or engine["stage"] == 3
    results = load(pools, tmp_path, "first", engine, {})
    for one in values(results):
        assert (one["error"], one["moved"]) == (None, [])
        assert (one["report"]["weights"], one["report"]["masters"]) == ("restored", "left out")
    assert len(warnings_of(results)) == 1
    healthy = load(pools, tmp_path, "first", engine, {}, load_optimizer_states=True)
    assert [(one["error"], one["moved"]) for one in values(healthy)] == [(None, [])] * 2
    assert warnings_of(healthy) == []


@pytest.mark.parametrize("engine", [{"stage": 2}, {"stage": 3}, {"stage": 0, "precision": "fp32"}], ids=str)
def test_where_upstream_does_it_nothing_is_repaired(pools: Pools, tmp_path: Path, engine: dict[str, Any]) -> None:
    results = load(pools, tmp_path, "newest", engine, {})
    for one, result in zip(values(results), results, strict=True):
        assert one["error"] is None
        assert one["moved"] == []
        assert not any("made from the loaded weights" in text for text in result.said(10))
