"""Ranks that share sequences (Ulysses): files under their numbers (G13), and experts that they saved (G14)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Pools
from tests.support.results import RankResult, noted, values, warnings_of

WEIGHTS: dict[str, Any] = {"load_module_only": True}
ALL: dict[str, Any] = {}


def load(
    pools: Pools, folder: Path, role: str, kind: str, settings: dict[str, Any] | None, **kwargs: Any
) -> list[RankResult]:
    return pools.get(role, 2).run(
        "tests.faults.scenarios.sequence:load", timeout=60, folder=str(folder), kind=kind, settings=settings,
        **{"shared_before": False, "arguments": ALL, **kwargs},
    )  # fmt: skip


def restored(results: list[RankResult]) -> None:
    assert [(one["error"], one["path"], one["weights"]) for one in values(results)] == [(None, True, True)] * 2


@pytest.mark.parametrize("role", ["oldest", pytest.param("stage0_loses_moments", marks=pytest.mark.whole)])
@pytest.mark.parametrize("arguments", [WEIGHTS, ALL], ids=["weights", "all"])
def test_ranks_that_share_sequences(pools: Pools, tmp_path: Path, role: str, arguments: dict[str, Any]) -> None:
    first, second = values(load(pools, tmp_path / "off", role, "plain", None, arguments=arguments))
    assert (first["error"], first["weights"], second["error"][0]) == (None, True, "IndexError"), "half of the ranks go on"
    for one in values(load(pools, tmp_path / "on", role, "plain", {}, arguments=arguments)):
        assert one["error"][0] == "LoadRefused"
        assert "takes sequence-parallel ranks for model-parallel ones" in one["error"][1]
    restored(load(pools, tmp_path / "way", role, "plain", {}, arguments=arguments, numbered=False))


@pytest.mark.parametrize("kind", ["plain", "experts"])
@pytest.mark.parametrize("shared_before", [False, True])
def test_sequences_are_shared_and_nothing_is_lost(pools: Pools, tmp_path: Path, kind: str, shared_before: bool) -> None:
    results = load(pools, tmp_path, "newest", kind, {}, shared_before=shared_before)
    restored(results)
    said = warnings_of(results)
    assert len(said) == (kind == "experts"), said
    assert all("not checked" in text for text in said), "experts have no reader yet"


@pytest.mark.whole
@pytest.mark.parametrize("role", ["oldest", "stage0_loses_moments"])
def test_experts_on_ranks_that_share_sequences(pools: Pools, tmp_path: Path, role: str) -> None:
    first, second = values(load(pools, tmp_path / "off", role, "experts", None))
    assert (first["error"], second["error"][0]) == (None, "IndexError")
    first, second = values(load(pools, tmp_path / "on", role, "experts", {}))
    assert (first["error"][0], second["error"][0]) == ("LoadIncomplete", "IndexError")
    assert noted(second, "takes sequence-parallel ranks for model-parallel ones")


@pytest.mark.parametrize("arguments", [WEIGHTS, ALL], ids=["weights", "all"])
def test_experts_saved_by_ranks_that_share_sequences(pools: Pools, tmp_path: Path, arguments: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"shared_before": True, "numbered": False, "arguments": arguments}
    for settings in (None, {}):
        results = load(pools, tmp_path, "oldest", "experts", settings, **asked)
        if arguments:
            restored(results)
            continue
        for one in values(results):
            assert one["error"][0] == "ZeRORuntimeException"
            assert settings is None or noted(one, "take the weights only")


@pytest.mark.whole
def test_the_next_release_reads_experts_saved_so(pools: Pools, tmp_path: Path) -> None:
    restored(load(pools, tmp_path, "stage0_loses_moments", "experts", {}, shared_before=True, numbered=False))
