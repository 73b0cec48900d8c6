"""The described defect, recreated, with 4 ranks in the configuration of the report; and its healthy twins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Pools
from tests.support.recreated import VARIANTS, edit, recreated
from tests.support.results import RankResult, errors, values, warnings_of
from tests.support.trees import Tree

TAG = "epoch_5_step_2000"
RANKS = 4


def resume(
    pools: Pools, tree: Tree | str, folder: Path, tag: str | int, settings: dict[str, Any] | None
) -> list[RankResult]:
    """The results of the resume scenario on all ranks."""
    scenario = "tests.faults.scenarios.string_tag:resume"
    return pools.get(tree, RANKS).run(scenario, timeout=120, folder=str(folder), tag=tag, settings=settings)


def assert_restored(results: list[RankResult], tag: str | int) -> None:
    """Every byte of state as saved, and the next losses are those of the uninterrupted run."""
    for found in values(results):
        assert found["path"].endswith(f"/{tag}/mp_rank_00_model_states.pt")
        assert found["wrong"] == []
        assert found["moments"][0] == found["moments"][1] > 0
        assert found["resumed"] == found["losses"]


def test_without_dspatch_the_load_reports_success_and_every_moment_is_zero(pools: Pools, tmp_path: Path) -> None:
    for found in values(resume(pools, recreated(), tmp_path, TAG, None)):
        assert found["path"].endswith(f"{TAG}/mp_rank_00_model_states.pt")
        assert found["moments"][0] > 0
        assert found["moments"][1] == 0
        assert not [name for name in found["wrong"] if name.startswith(("weights/", "buffers/"))]
        assert found["resumed"][0] == found["losses"][0], "the weights were right, so was the first loss"
        assert found["resumed"][1:] != found["losses"][1:]


def test_with_an_integer_tag_the_recreated_tree_is_healthy(pools: Pools, tmp_path: Path) -> None:
    assert_restored(resume(pools, recreated(), tmp_path, 2000, None), 2000)


@pytest.mark.parametrize(
    ("variant", "tags"),
    # Each variant is a tree of its own, for which DeepSpeed compiles for a minute.
    [("resolver", "error"), pytest.param("unresolvable", "resolve", marks=pytest.mark.whole)],
)
def test_string_tag_swallowed_raises_the_same_error_on_every_rank(
    pools: Pools, tmp_path: Path, variant: str, tags: str
) -> None:
    found = errors(resume(pools, recreated(variant), tmp_path, TAG, {"tags": tags}))
    assert [error.kind for error in found] == ["raised"] * RANKS
    assert len({(error.type, error.message) for error in found}) == 1
    assert TAG in found[0].message


def test_string_tag_swallowed_is_resolved_bit_for_bit(pools: Pools, tmp_path: Path) -> None:
    results = resume(pools, recreated(), tmp_path, TAG, {"tags": "resolve"})
    assert_restored(results, TAG)
    assert any(TAG in text for text in warnings_of(results)), "a path that dspatch had to resolve is said at WARNING"


def test_string_tag_swallowed_is_caught_by_the_verdict_with_its_patches_off(pools: Pools, tmp_path: Path) -> None:
    off = {"disable": "shard-path,shard-path-own,trace-load,trace-zero,trace-shards,trace-shard-names,"
                      "trace-mp-shard-names,trace-shard-files,trace-zero12"}  # fmt: skip
    found = errors(resume(pools, recreated(), tmp_path, TAG, off))
    assert {error.type for error in found} == {"LoadIncomplete"}
    assert "moments fresh" in found[0].message


@pytest.mark.parametrize("role", ["oldest", "newest"])
@pytest.mark.parametrize("tag", [TAG, 2000])
@pytest.mark.parametrize("tags", ["resolve", pytest.param("error", marks=pytest.mark.whole)])
def test_untouched_releases_are_right_and_silent(
    pools: Pools, tmp_path: Path, role: str, tag: str | int, tags: str
) -> None:
    results = resume(pools, role, tmp_path, tag, {"tags": tags})
    assert_restored(results, tag)
    assert warnings_of(results) == []


def test_the_recipe_refuses_a_source_that_it_does_not_know() -> None:
    source = "class DeepSpeedEngine:\n    def _get_rank_zero_ckpt_name(self, tag):\n        return tag\n"
    with pytest.raises(ValueError, match="0 times"):
        edit(source, {"_get_rank_zero_ckpt_name": VARIANTS["resolver"]["_get_rank_zero_ckpt_name"]})
