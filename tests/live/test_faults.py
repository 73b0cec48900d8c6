"""Every fault is found on the ranks that have it, in the right component, with the right parameter named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.live.kinds import ALL, FAMILIES, arguments
from tests.live.test_healthy import LOAD, OFF, STALE_SECONDARY
from tests.support.pool import Pools
from tests.support.results import values

ONE_OF_EACH = ["zero2-bf16", "zero2-fp16-offload", "zero3-bf16", "zero3-params-offload", "stage0-bf16", "stage0-fp32",
               "bf16-optimizer"]  # fmt: skip
WITH_MASTERS = [kind for kind in ONE_OF_EACH if kind != "stage0-fp32"]

#: Kinds that hold one tensor for each parameter, so that one zeroed parameter is a tensor that looks fresh.
UNFUSED = ("stage0-bf16", "stage0-fp32")


def outcomes(results: list[dict[str, Any]]) -> list[dict[str, str]]:
    """For each rank what is not restored."""
    return [{name: said for name, said in one["outcomes"].items() if said != "restored"} for one in results]


def run(pools: Pools, folder: Path, kind: str, fault: str, role: str = "newest", **kwargs: Any) -> list[dict[str, Any]]:
    pool = pools.get(role, 2, env=OFF)
    found: list[dict[str, Any]] = values(
        pool.run(LOAD, folder=str(folder), saved=arguments(kind), fault=fault, **kwargs)
    )
    return found


def only(finding: list[dict[str, Any]]) -> dict[str, Any]:
    assert len(finding) == 1, finding
    return finding[0]


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_moments_of_one_parameter_are_zero(pools: Pools, tmp_path: Path, kind: str) -> None:
    for rank, result in enumerate(run(pools, tmp_path, kind, "zero_one_moment")):
        finding = only(result["findings"])
        assert (finding["component"], finding["rank"], finding["count"]) == ("moments", rank, 1)
        assert finding["outcome"] == ("fresh" if kind in UNFUSED else "mismatch")
        assert finding["names"] == result["chosen"]
        assert "exp_avg" in finding["expected"]
    assert set(finding) == {"component", "outcome", "rank", "file", "names", "count", "expected", "found", "do", "ranks"}


@pytest.mark.parametrize("kind", ["muon-stage0", "muon-stage2", "muon-stage3", "sgd_momentum-stage2"])
def test_one_element_of_a_momentum_buffer_is_wrong(pools: Pools, tmp_path: Path, kind: str) -> None:
    for result in run(pools, tmp_path, kind, "other_momentum"):
        finding = only(result["findings"])
        assert (finding["component"], finding["outcome"], finding["count"]) == ("moments", "mismatch", 1)
        assert "momentum_buffer" in finding["found"]


@pytest.mark.parametrize("kind", FAMILIES)
def test_one_bit_of_a_moment_is_wrong(pools: Pools, tmp_path: Path, kind: str) -> None:
    results = run(pools, tmp_path, kind, "flip_a_bit")
    assert outcomes(results) == [{"moments": "mismatch"}] * 2
    for result in results:
        finding = only(result["findings"])
        assert finding["names"] == result["chosen"]
        assert "exp_avg_sq" in finding["found"]
        assert finding["file"]


@pytest.mark.parametrize("level", ["full", pytest.param("bytes", marks=pytest.mark.whole)])
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_all_moments_are_zero(pools: Pools, tmp_path: Path, kind: str, level: str) -> None:
    results = run(pools, tmp_path, kind, "zero_moments", level=level)
    assert outcomes(results) == [{"moments": "fresh"}] * 2


@pytest.mark.parametrize("level", ["full", "structure"])
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_no_optimizer_state_at_all(pools: Pools, tmp_path: Path, kind: str, level: str) -> None:
    for result in outcomes(run(pools, tmp_path, kind, "no_moments", level=level)):
        assert result["moments"] == "fresh"
        assert result["optimizer_step"] == "fresh"


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_step_is_off_by_one(pools: Pools, tmp_path: Path, kind: str) -> None:
    assert outcomes(run(pools, tmp_path, kind, "step_off")) == [{"optimizer_step": "mismatch"}] * 2


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_learning_rate_is_off(pools: Pools, tmp_path: Path, kind: str) -> None:
    results = run(pools, tmp_path, kind, "lr_off")
    assert outcomes(results) == [{"param_groups": "mismatch"}] * 2
    assert only(results[0]["findings"])["names"] == ["group 1.lr"]


@pytest.mark.parametrize("kind", WITH_MASTERS)
def test_masters_are_stale(pools: Pools, tmp_path: Path, kind: str) -> None:
    for result in run(pools, tmp_path, kind, "stale_masters"):
        assert outcomes([result]) == [{"masters": "mismatch"}]
        assert {finding["component"] for finding in result["findings"]} == {"masters"}
        assert any("first step would undo the load" in finding["found"] for finding in result["findings"])


@pytest.mark.parametrize("kind", WITH_MASTERS)
def test_masters_are_made_from_the_weights(pools: Pools, tmp_path: Path, kind: str) -> None:
    results = run(pools, tmp_path, kind, "masters_from_weights")
    assert outcomes(results) == [{"masters": "fresh"}] * 2


@pytest.mark.parametrize("kind", WITH_MASTERS)
def test_stale_masters_are_wrong_even_when_nobody_asked_for_them(pools: Pools, tmp_path: Path, kind: str) -> None:
    asked = frozenset(("weights", "counters"))
    assert outcomes(run(pools, tmp_path, kind, "stale_masters", asked=asked)) == [{"masters": "mismatch"}] * 2
    healthy = run(pools, tmp_path / "twin", kind, "masters_from_weights", asked=asked)
    assert outcomes(healthy) == [{"masters": "left out"}] * 2
    assert [result["findings"] for result in healthy] == [[], []]


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_a_weight_is_changed(pools: Pools, tmp_path: Path, kind: str) -> None:
    results = run(pools, tmp_path, kind, "other_weight")
    for result in results:
        assert outcomes([result])[0]["weights"] == "mismatch"
        assert all(finding["names"] == ["middle.1.weight"] for finding in result["findings"])


@pytest.mark.parametrize("kind", ["zero2-fp16-offload", "zero3-fp16-offload", "stage0-fp16"])
def test_loss_scale_is_off(pools: Pools, tmp_path: Path, kind: str) -> None:
    assert outcomes(run(pools, tmp_path, kind, "scale_off")) == [{"loss_scaler": "mismatch"}] * 2


def test_counters_and_scheduler_are_off(pools: Pools, tmp_path: Path) -> None:
    results = run(pools, tmp_path, "zero2-bf16", "counter_off")
    assert outcomes(results) == [{"counters": "mismatch"}] * 2
    assert only(results[1]["findings"])["names"] == ["global_steps"]
    assert outcomes(run(pools, tmp_path / "2", "zero2-bf16", "scheduler_off")) == [{"lr_scheduler": "mismatch"}] * 2


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_everything_is_of_another_tag(pools: Pools, tmp_path: Path, kind: str) -> None:
    for result in outcomes(run(pools, tmp_path, kind, "other_tag")):
        wrong = {"weights", "moments", "optimizer_step", "counters"} | ({"masters"} if kind in WITH_MASTERS else set())
        assert {name for name in wrong if result.get(name) == "mismatch"} == wrong


@pytest.mark.parametrize("kind", ["zero2-bf16", "zero3-bf16", "bf16-optimizer"])
def test_the_shard_is_of_the_other_rank(pools: Pools, tmp_path: Path, kind: str) -> None:
    for result in outcomes(run(pools, tmp_path, kind, "other_rank")):
        assert result["masters"] == "mismatch"
        assert result["moments"] == "mismatch"


@pytest.mark.parametrize("role", ["newest", pytest.param("oldest", marks=pytest.mark.whole)])
@pytest.mark.parametrize("kind", ["zero1-bf16", "zero3-bf16", "stage0-fp16", "stage0-bf16", "stage0-fp32"])
def test_parameters_are_registered_in_another_order(pools: Pools, tmp_path: Path, kind: str, role: str) -> None:
    """DeepSpeed itself loads this without a word: masters and moments go by position, weights by name."""
    results = values(pools.get(role, 2, env=OFF).run(
        "tests.live.scenarios:reorder", folder=str(tmp_path), **{**arguments(kind), "scheduler": None}))  # fmt: skip
    for result in results:
        assert kind == "stage0-fp32" or outcomes([result])[0]["masters"] == "mismatch"
        assert outcomes([result])[0]["moments"] == "mismatch"
        layout = next(one for one in result["findings"] if "in the order of the run that saved" in one["do"])
        assert set(layout["names"]) == {"second.weight", "third.weight"}


@pytest.mark.parametrize("role", ["newest", "oldest"])
def test_round_robin_is_switched_on(pools: Pools, tmp_path: Path, role: str) -> None:
    results = values(pools.get(role, 2, env=OFF).run(
        LOAD, folder=str(tmp_path), saved=arguments("zero2-bf16"), loaded={"zero": {"round_robin_gradients": True}},
    ))  # fmt: skip
    for result in results:
        assert outcomes([result])[0]["masters"] == "mismatch"
        assert any("round_robin_gradients" in finding["do"] for finding in result["findings"])


def test_secondary_partition_is_stale(pools: Pools, tmp_path: Path) -> None:
    kind, role = STALE_SECONDARY
    results = run(pools, tmp_path, kind, "", role)
    assert outcomes(results) == [{"weights": "mismatch"}] * 2
    assert "secondary" in only(results[0]["findings"])["found"]


def test_the_release_that_loses_stage_0_state(pools: Pools, tmp_path: Path) -> None:
    results = run(pools, tmp_path, "stage0-bf16", "", "stage0_loses_moments")
    for result in outcomes(results):
        assert result["moments"] == "absent (the checkpoint holds none)"
        assert result["param_groups"] == "absent (the checkpoint holds none)"
        assert result["masters"] == "mismatch"
        assert "weights" not in result


def test_a_scheduler_without_a_place(pools: Pools, tmp_path: Path) -> None:
    results = run(pools, tmp_path, "zero2-bf16", "", loaded={"scheduler": None})
    for result in outcomes(results):
        assert result.pop("lr_scheduler").startswith("not checked (the checkpoint has one")
        assert result == {}


def test_what_was_not_asked_for_is_left_out(pools: Pools, tmp_path: Path) -> None:
    for kind in ("zero2-bf16", "zero3-bf16"):
        asked = ALL - {"masters", "moments", "optimizer_step", "param_groups", "loss_scaler"}
        results = run(
            pools, tmp_path / kind, kind, "", load_kwargs={"load_optimizer_states": False}, asked=asked, last=True
        )
        for result in outcomes(results):
            assert result == {
                "masters": "left out", "moments": "left out", "optimizer_step": "left out", "param_groups": "left out",
            }  # fmt: skip
        assert [result["findings"] for result in results] == [[], []]


def test_an_optimizer_that_nobody_knows(pools: Pools, tmp_path: Path) -> None:
    results = run(pools, tmp_path, "zero2-bf16", "unknown_optimizer")
    for result in results:
        assert result["outcomes"]["moments"] == "not checked (unknown optimizer Stranger)"
        assert result["outcomes"]["masters"] == "not checked (unknown optimizer Stranger)"
        assert result["outcomes"]["weights"] == "restored"


def test_findings_stay_small(pools: Pools, tmp_path: Path) -> None:
    saved = {**arguments("zero3-bf16"), "model": {"depth": 40}, "zero": {"sub_group_size": 300}}
    results = values(pools.get("newest", 2, env=OFF).run(LOAD, folder=str(tmp_path), saved=saved, fault="other_tag"))
    for result in results:
        assert len(result["findings"]) <= 16
        assert max(finding["count"] for finding in result["findings"]) > 40
        assert all(len(finding["names"]) <= 5 for finding in result["findings"])
