"""NVMe offload of the optimizer: its swap files are measured like shards. Needs libaio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Pools
from tests.support.results import RankResult, values, warnings_of

#: The large sub-group, which lies in swap files, and what is too small for that.
LARGE = {"first.weight", "middle.0.weight", "middle.1.weight"}

#: DeepSpeed compiles its async_io at the first use.
COMPILES = 600


@pytest.fixture(scope="module", autouse=True)
def can_run(pools: Pools) -> None:
    reason = values(pools.get("newest", 2).run("tests.faults.scenarios.nvme:can_run", timeout=COMPILES))[0]
    if reason:
        pytest.skip(reason)


def run(pools: Pools, folder: Path, into: str, **kwargs: Any) -> list[RankResult]:
    kwargs.setdefault("settings", {})
    return pools.get("newest", 2).run(
        "tests.faults.scenarios.nvme:load", timeout=COMPILES, folder=str(folder), into=into, **kwargs
    )


def names(result: dict[str, Any], component: str, outcome: str) -> set[str]:
    return {
        name
        for one in result["findings"]
        if (one["component"], one["outcome"]) == (component, outcome)
        for name in one["names"]
    }


def test_the_engine_that_saved_gets_everything_back(pools: Pools, tmp_path: Path) -> None:
    results = run(pools, tmp_path, "same")
    for one in values(results):
        assert one["error"] is None
        assert set(one["outcomes"].values()) == {"restored"}, one["outcomes"]
        assert {"weights", "masters", "moments", "optimizer_step", "param_groups"} <= set(one["outcomes"])
        # Masters and both moments of 826,000 parameters, of which each rank holds the half.
        assert one["bytes"] > 2 * 3 * 4 * 413_000
    assert warnings_of(results) == []


def test_a_fresh_process_resumes_without_moments(pools: Pools, tmp_path: Path) -> None:
    """B1: swapped masters come back, and nothing else of the optimizer does."""
    upstream = values(run(pools, tmp_path / "upstream", "fresh", settings=None))
    assert [(one["error"], one["steps_of_moments"]) for one in upstream] == [(None, [])] * 2, "upstream: silent"
    for one in values(run(pools, tmp_path / "strict", "fresh")):
        assert one["error"][0] == "LoadIncomplete"
        assert (one["outcomes"]["moments"], one["outcomes"]["optimizer_step"]) == ("fresh", "fresh")
        assert one["outcomes"]["param_groups"] == "mismatch"
        lost = names(one, "masters", "mismatch") | names(one, "masters", "fresh")
        assert lost and not lost & LARGE, "the swapped masters are there"


@pytest.mark.parametrize(("mode", "warned"), [("warn", True), ("observe", False)])
def test_a_fresh_process_in_other_modes(pools: Pools, tmp_path: Path, mode: str, warned: bool) -> None:
    results = run(pools, tmp_path, "fresh", settings={"mode": mode})
    assert [one["error"] for one in values(results)] == [None, None]
    assert bool(warnings_of(results)) == warned


def test_swapped_moments_that_were_not_copied_back(pools: Pools, tmp_path: Path) -> None:
    for one in values(run(pools, tmp_path, "trained", spoil="copy")):
        assert one["error"][0] == "LoadIncomplete"
        assert names(one, "moments", "mismatch") >= LARGE
        assert not names(one, "masters", "mismatch") & LARGE, "twin: masters were copied back"


def test_swapped_moments_that_were_copied_back(pools: Pools, tmp_path: Path) -> None:
    """The twin: after another step the load brings the swapped state back, and upstream nothing that is too small (B1)."""
    for one in values(run(pools, tmp_path, "trained")):
        assert one["error"][0] == "LoadIncomplete"
        assert not names(one, "moments", "mismatch") & LARGE
        assert names(one, "moments", "mismatch")


def test_a_second_engine_of_the_process_would_read_no_swap_file(pools: Pools, tmp_path: Path) -> None:
    upstream = values(run(pools, tmp_path / "upstream", "second", settings=None))
    assert [one["error"] for one in upstream] == [None, None], "upstream: silent"
    for one in values(run(pools, tmp_path / "strict", "second")):
        assert one["error"][0] == "LoadRefused"
        assert "tensor.swp" in one["error"][1]
        assert "fresh process" in one["error"][1]


def test_swap_files_that_are_gone(pools: Pools, tmp_path: Path) -> None:
    for one in values(run(pools, tmp_path, "fresh", spoil="gone")):
        assert one["error"][0] == "LoadRefused"
        assert "no swap file" in one["error"][1]
