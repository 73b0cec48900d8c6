"""What happens when one rank fails, hangs, stays away or was started otherwise: all ranks hear of it, none waits for ever."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Pools
from tests.support.results import RankResult, values, warnings_of

SCENARIOS = "tests.faults.scenarios.ranks:"


def run(pools: Pools, scenario: str, timeout: float = 120, **kwargs: Any) -> list[RankResult]:
    return pools.get("newest", 2).run(SCENARIOS + scenario, timeout=timeout, **kwargs)


@pytest.mark.parametrize("absent", [0, 1])
def test_a_rank_that_never_calls_the_loader_is_named(pools: Pools, tmp_path: Path, absent: int) -> None:
    found = values(run(pools, "stays_away", folder=str(tmp_path), absent_rank=absent, seconds=2.0))
    there = found[1 - absent]
    assert there["error"][0] == "RankSilent"
    assert f"no word from rank {absent}" in there["error"][1]
    assert "never called the loader" in there["error"][1]
    assert there["steps"] == 0, "nothing was touched while the others were missing"
    assert there["seconds"] < 2 + 11
    assert [one["next"] for one in found] == [None, None], "the ranks find together again"


@pytest.mark.parametrize("failing", [0, 1])
def test_one_failing_rank_stops_all(pools: Pools, tmp_path: Path, failing: int) -> None:
    found = values(run(pools, "fails_alone", folder=str(tmp_path), failing_rank=failing, how="raises", seconds=20.0))
    assert found[failing]["error"] == ("OSError", "no space in page cache")
    kind, text = found[1 - failing]["error"]
    assert kind == "LoadIncomplete"
    assert "1 of 2 ranks" in text
    assert f"rank {failing}" in text
    assert "OSError: no space in page cache" in text
    if sys.version_info >= (3, 11):
        # Rank `failing` got no further than the weights; the other one has everything, and must not train on with it.
        told = [next(note for note in one["notes"] if "as in the files now" in note) for one in found]
        done, _, left = told[failing].partition("; not so: ")
        assert "weights" in done
        assert "masters (" in left
        assert "moments (fresh)" in left
        done, _, left = told[1 - failing].partition("; not so: ")
        assert "moments" in done
        assert left == "nothing"
    assert [one["next"] for one in found] == [None, None]


def test_a_rank_that_hangs_in_the_loader_is_named(pools: Pools, tmp_path: Path) -> None:
    found = values(run(pools, "fails_alone", folder=str(tmp_path), failing_rank=1, how="hangs", seconds=3.0))
    kind, text = found[0]["error"]
    assert kind == "RankSilent"
    assert "no word from rank 1" in text
    assert "after the load" in text
    assert found[1]["error"] is not None, "the late rank does not train on alone"
    assert [one["next"] for one in found] == [None, None]


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not tell what a process has read")
@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_rank_that_goes_on_reading_is_waited_for(pools: Pools, tmp_path: Path, slow: int) -> None:
    """Four times the limit: storage may be slow, and a healthy cluster must not be stopped."""
    # Rank 1 waits ten seconds more than the limit before it looks after rank 0.
    seconds = 4.0 if slow == 0 else 1.5
    results = run(pools, "fails_alone", folder=str(tmp_path), failing_rank=slow, how="is slow", seconds=seconds)
    for one in values(results):
        assert one["error"] is None
        assert set(one["report"].values()) == {"restored"}
        assert one["next"] is None


def test_ranks_with_different_settings(pools: Pools, tmp_path: Path) -> None:
    per_rank = [{"settings": {"tags": "resolve"}}, {"settings": {"tags": "error"}}]
    found = values(run(pools, "own_arguments", folder=str(tmp_path), mine={}, per_rank=per_rank))
    assert {one["error"] for one in found} == {found[0]["error"]}
    kind, text = found[0]["error"]
    assert kind == "LoadRefused"
    for part in ("different dspatch settings", "'tags': 'resolve'", "'tags': 'error'", ".deepspeed_env"):
        assert part in text
    assert [one["changed"] for one in found] == [[], []]


def test_ranks_with_different_arguments(pools: Pools, tmp_path: Path) -> None:
    per_rank = [{"mine": {}}, {"mine": {"load_optimizer_states": False}}]
    found = values(run(pools, "own_arguments", folder=str(tmp_path), settings={}, per_rank=per_rank))
    for one in found:
        assert one["error"][0] == "LoadRefused"
        assert "'optimizer_states': True" in one["error"][1]
        assert one["changed"] == []


def test_ranks_alike_are_silent(pools: Pools, tmp_path: Path) -> None:
    results = run(pools, "own_arguments", folder=str(tmp_path), mine={}, settings={"tags": "error"})
    assert [one["error"] for one in values(results)] == [None, None]
    assert warnings_of(results) == []


def test_one_engine_loads_twice(pools: Pools, tmp_path: Path) -> None:
    results = run(pools, "two_loads", folder=str(tmp_path), settings={})
    assert values(results) == [[("b", True, 6), ("a", True, 3)]] * 2
    assert warnings_of(results) == []
