"""Engines that few people have: without an optimizer (A14)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Pools
from tests.support.results import RankResult, values, warnings_of

WEIGHTS = {"load_optimizer_states": False}


def load(pools: Pools, folder: Path, role: str, **kwargs: Any) -> list[RankResult]:
    return pools.get(role, 2).run(
        "tests.faults.scenarios.special:load", timeout=60, folder=str(folder), kind="inference", **kwargs
    )


@pytest.mark.parametrize("role", ["oldest", pytest.param("stage0_loses_moments", marks=pytest.mark.whole), "newest"])
def test_an_engine_without_masters_loads_its_weights(pools: Pools, tmp_path: Path, role: str) -> None:
    for settings in (None, {"disable": "no-masters"}):
        for one in values(load(pools, tmp_path / "off", role, settings=settings, arguments=WEIGHTS)):
            assert one["error"] is not None
            assert one["error"][0] == "AttributeError"
    results = load(pools, tmp_path / "on", role, settings={}, arguments=WEIGHTS)
    for one in values(results):
        assert (one["error"], one["path"], one["same"]) == (None, True, True)
    said = warnings_of(results)
    assert len([text for text in said if "writes its weights to no file" in text]) == 1


@pytest.mark.parametrize("role", ["oldest", "newest"])
def test_an_engine_without_an_optimizer_is_told_what_to_ask_for(pools: Pools, tmp_path: Path, role: str) -> None:
    for one in values(load(pools, tmp_path, role, settings={})):
        assert one["error"][0] == "LoadRefused"
        assert "load_optimizer_states=False" in one["error"][1]
