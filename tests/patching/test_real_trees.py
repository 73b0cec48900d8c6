"""The patches on real DeepSpeed trees: what the ledger says, what is undone, what other tools and contexts do to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch.patching.matrix import load
from tests.support.pool import Pools
from tests.support.results import values, warnings_of
from tests.support.trees import roles

SCENARIOS = "tests.patching.real:"
TREES = ["oldest", "stage0_loses_moments", "newest"]


@pytest.mark.parametrize("role", TREES)
def test_every_row_applies_where_it_was_tested(pools: Pools, role: str) -> None:
    for found in values(pools.get(role, 2, dspatch="import").run(SCENARIOS + "ledger")):
        needed = {row.id for row in load().for_version(roles()[role])}
        assert [one for one in found if one[0] in needed] == [
            (patch, "applied", "tested") for patch in load().ids() if patch in needed
        ]
        # A module that a release does not have is waited for.
        assert {one[1:] for one in found if one[0] not in needed} <= {("skipped", "not needed"), ("armed", "")}


def test_the_startup_file_brings_the_same(pools: Pools) -> None:
    for found in values(pools.get("newest", 2, dspatch="startup").run(SCENARIOS + "ledger")):
        needed = {row.id for row in load().for_version(roles()["newest"])}
        assert {state for patch, state, _ in found if patch in needed} == {"applied"}


@pytest.mark.parametrize("role", TREES)
def test_late_on_and_exactly_off(pools: Pools, role: str) -> None:
    for found in values(pools.get(role, 2).run(SCENARIOS + "on_and_off_again")):
        assert list(found.values()) == [True] * len({row.site for row in load().for_version(roles()[role])}), (
            "changed, then the very same again"
        )


def test_an_engine_method_pickles_as_before(pools: Pools) -> None:
    for without, with_it in values(pools.get("newest", 2).run(SCENARIOS + "pickled_method")):
        assert with_it == without


@pytest.mark.parametrize("role", ["oldest", "newest"])
def test_nested_zero_init(pools: Pools, tmp_path: Path, role: str) -> None:
    results = pools.get(role, 2).run(SCENARIOS + "nested_zero_init", folder=str(tmp_path))
    for found in values(results):
        assert set(found.values()) == {"restored"}
    assert warnings_of(results) == []


def test_between_other_tools(pools: Pools, tmp_path: Path) -> None:
    for found in values(pools.get("newest", 2).run(SCENARIOS + "between_other_tools", folder=str(tmp_path))):
        assert found == {
            "during": ["above", "below"], "guarded": True, "after": ["above", "below"], "below is there": True
        }  # fmt: skip


@pytest.mark.parametrize("way", ["import", "startup"])
def test_nothing_of_ours_runs_in_a_training_step(pools: Pools, tmp_path: Path, way: str) -> None:
    for found in values(pools.get("newest", 2, dspatch=way).run(SCENARIOS + "frames_of_ours", folder=str(tmp_path))):
        assert found["step"] == []
        assert "guarded_load" in found["load"]
