"""The pool survives everything that a scenario can do to it."""

from __future__ import annotations

import pytest

from tests.support.pool import Pools, shared_memory_left
from tests.support.results import ScenarioFailed, errors, values, warnings_of

HERE = "tests.support_checks.scenarios"


def test_ranks_stay_alive_between_scenarios(pools: Pools) -> None:
    pool = pools.get("newest")
    assert values(pool.run(f"{HERE}:sum_of_ranks")) == [1, 1]
    second = pool.run(f"{HERE}:sum_of_ranks", plus=10)
    assert values(second) == [21, 21]
    assert max(result.seconds for result in second) < 2, "the ranks were started again"


@pytest.mark.parametrize(
    ("scenario", "kinds"),
    [("one_rank_raises", {"hang", "raised"}), ("crash", {"crash", "hang", "raised"}), ("hang", {"hang"})],
)
def test_after_a_lost_rank_the_pool_comes_up_again(pools: Pools, scenario: str, kinds: set[str]) -> None:
    pool = pools.get("newest")
    results = pool.run(f"{HERE}:{scenario}", timeout=3)
    assert {result.error.kind for result in results if result.error} <= kinds
    assert any(result.error for result in results)
    assert not pool.alive
    assert values(pool.run(f"{HERE}:sum_of_ranks")) == [1, 1]


def test_a_message_left_over_ends_the_pool(pools: Pools) -> None:
    pool = pools.get("newest")
    values(pool.run(f"{HERE}:out_of_step"))
    assert not pool.alive


def test_when_all_ranks_raise_the_pool_stays(pools: Pools) -> None:
    pool = pools.get("newest")
    found = errors(pool.run(f"{HERE}:all_raise"))
    assert [(error.type, error.message) for error in found] == [("LookupError", "nothing here")] * 2
    assert "all_raise" in found[0].traceback
    assert pool.alive


def test_errors_and_values_do_not_accept_the_other(pools: Pools) -> None:
    pool = pools.get("newest")
    with pytest.raises(ScenarioFailed, match="raised nothing"):
        errors(pool.run(f"{HERE}:sum_of_ranks"))
    with pytest.raises(ScenarioFailed, match="nothing here"):
        values(pool.run(f"{HERE}:all_raise"))


def test_a_value_that_cannot_travel_is_an_error(pools: Pools) -> None:
    assert {error.kind for error in errors(pools.get("newest").run(f"{HERE}:unpicklable"))} == {"raised"}


def test_log_records_and_environment_of_a_scenario(pools: Pools) -> None:
    pool = pools.get("newest")
    results = pool.run(f"{HERE}:says", text="lost", environ={"DSPATCH_MODE": "warn"})
    assert warnings_of(results) == ["rank 0: lost", "rank 1: lost"]
    assert values(results) == [(str(pool.tree.extensions), False, "warn")] * 2
    again = pool.run(f"{HERE}:says", text="lost")
    assert values(again) == [(str(pool.tree.extensions), False, None)] * 2


def test_keyword_arguments_for_one_rank(pools: Pools) -> None:
    assert values(pools.get("newest").run(f"{HERE}:sum_of_ranks", per_rank=[{"plus": 1}, {"plus": 2}])) == [4, 4]


def test_nothing_stays_in_shared_memory(pools: Pools) -> None:
    own = Pools()
    pool = own.get("newest", 1)
    before = set(shared_memory_left())
    values(pool.run(f"{HERE}:sum_of_ranks"))
    assert set(shared_memory_left()) - before, "the rank made no shared-memory file; this test looks at the wrong name"
    own.close()
    assert not set(shared_memory_left()) - before
