"""Optimizer state that no file has (Twin-Flow, ZenFlow): told at the save, an error at the load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Pools
from tests.support.results import values, warnings_of


def run(pools: Pools, folder: Path, kind: str, **kwargs: Any) -> Any:
    kwargs.setdefault("settings", {})
    # The first engine may have to compile DeepSpeed's CPU Adam.
    return pools.get("newest", 2).run(
        "tests.faults.scenarios.elsewhere:save_and_load", timeout=300, folder=str(folder), kind=kind, **kwargs
    )


@pytest.mark.parametrize(("kind", "feature"), [("twin-flow", "Twin-Flow"), ("zenflow", "ZenFlow")])
def test_state_in_no_file_is_told_at_the_save_and_caught_at_the_load(
    pools: Pools, tmp_path: Path, kind: str, feature: str
) -> None:
    found = values(run(pools, tmp_path, kind))
    assert [len(one["told"]) for one in found] == [1, 0], "once, on rank 0"
    assert feature in found[0]["told"][0]
    for one in found:
        assert one["outside"], "the scenario is what it says"
        assert one["error"][0] == "LoadIncomplete"
        assert (one["outcomes"]["moments"], one["outcomes"]["optimizer_step"]) == ("absent", "absent")
        lost = [finding for finding in one["findings"] if finding["component"] == "moments"]
        assert all(feature in finding["found"] for finding in lost)
        assert {name for finding in lost for name in finding["names"]} == set(one["kept"])


def test_state_in_no_file_with_the_watch_off(pools: Pools, tmp_path: Path) -> None:
    for one in values(run(pools, tmp_path, "twin-flow", settings={"disable": "save-watch"})):
        assert not any("cannot be resumed" in text for text in one["told"])
        assert one["error"][0] == "LoadIncomplete"


def test_state_in_no_file_where_nothing_stays_on_the_accelerator(pools: Pools, tmp_path: Path) -> None:
    """The twin: Twin-Flow is on, and all sub-groups are stepped on the CPU."""
    results = run(pools, tmp_path, "twin-flow", accelerator=False)
    for one in values(results):
        assert (one["told"], one["outside"], one["error"]) == ([], 0, None)
        assert set(one["outcomes"].values()) == {"restored"}
    assert warnings_of(results) == []
