"""G5: a load right behind a save of a decoupled checkpoint engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Pools
from tests.support.results import RankResult, values, warnings_of

#: These engines do not tell torch that they trust their own files.
READS = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}


def load_behind(pools: Pools, folder: Path, settings: dict[str, Any] | None, role: str = "newest") -> list[RankResult]:
    pool = pools.get(role, 2, env=READS)
    return pool.run("tests.faults.scenarios.decoupled:load_behind", timeout=90, folder=str(folder), settings=settings)


@pytest.mark.whole
@pytest.mark.parametrize("role", ["stage0_loses_moments", "newest"])
def test_save_still_open_is_finished_first(pools: Pools, tmp_path: Path, role: str) -> None:
    for one in values(load_behind(pools, tmp_path / "off", None, role)):
        assert (one["path"], one["steps"], one["waiting"]) == ("a", 2, True), "upstream takes the one before"
    results = load_behind(pools, tmp_path / "on", {}, role)
    for one in values(results):
        assert one["error"] is None, one["error"]
        assert (one["path"], one["steps"], one["waiting"]) == ("b", 3, False)
        assert set(one["report"].values()) == {"restored"}
    assert warnings_of(results) == []


@pytest.mark.whole
@pytest.mark.parametrize("mode", ["strict", "observe"])
def test_save_still_open_is_told_without_the_repair(pools: Pools, tmp_path: Path, mode: str) -> None:
    results = load_behind(pools, tmp_path, {"disable": "commit-first", "mode": mode})
    assert [one["path"] for one in values(results)] == ["a", "a"]
    said = [text for text in results[0].said(30 if mode == "strict" else 20) if "still being written" in text]
    assert len(said) == 1
