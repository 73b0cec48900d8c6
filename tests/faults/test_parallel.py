"""Experts and pipelines that are dealt out otherwise than at the save, and what of them no file has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import damage
from tests.support.pool import Pools
from tests.support.results import RankResult, noted, values, warnings_of

SCENARIOS = "tests.faults.scenarios.uncovered:"


def split(
    pools: Pools, folder: Path, kind: str, was: dict[str, Any], now: dict[str, Any], ranks: tuple[int, int],
    role: str = "newest", **kwargs: Any,
) -> list[RankResult]:  # fmt: skip
    if not (folder / "a").exists():
        values(pools.get(role, ranks[0]).run(SCENARIOS + "save_split", timeout=90, folder=str(folder), kind=kind, **was))
    return pools.get(role, ranks[1]).run(
        SCENARIOS + "load_split", timeout=90, folder=str(folder), kind=kind, **{"settings": {}, **kwargs}, **now
    )


def refusal(results: list[RankResult]) -> str:
    found = values(results)
    assert {one["error"] for one in found} == {found[0]["error"]}
    assert found[0]["error"] is not None
    assert found[0]["error"][0] == "LoadRefused", found[0]["error"]
    return str(found[0]["error"][1])


@pytest.mark.whole
def test_experts_of_another_ep_size(pools: Pools, tmp_path: Path) -> None:
    """D4, on 4 ranks: partition sizes agree, and upstream exchanges the masters of experts."""
    was, now, role = {"ep_size": 4}, {"ep_size": 2}, "stage0_loses_moments"
    found = values(split(pools, tmp_path, "experts", was, now, (4, 4), role, settings=None))
    assert [(one["error"], one["path"]) for one in found] == [(None, True)] * 4
    assert any(one["moved"] for one in found), "the first step undoes it"
    assert "ep_size" in refusal(split(pools, tmp_path, "experts", was, now, (4, 4), role))
    healthy = split(pools, tmp_path, "experts", was, was, (4, 4), role)
    assert [(one["error"], one["moved"]) for one in values(healthy)] == [(None, [])] * 4


@pytest.mark.parametrize("role", ["newest", pytest.param("oldest", marks=pytest.mark.whole)])
def test_experts_in_the_oldest_format(pools: Pools, tmp_path: Path, role: str) -> None:
    """D11, with a file that was made to look like one."""
    made = {"ep_size": 2}
    values(split(pools, tmp_path, "experts", made, made, (2, 2), role))
    damage.rewrite(tmp_path / "a" / "mp_rank_00_model_states.pt", lambda tree: tree.update(num_experts=4))
    for path in (tmp_path / "a").glob("layer_0_expert_*"):
        path.rename(path.with_name(path.name.removeprefix("layer_0_")))
    for one in values(split(pools, tmp_path, "experts", made, made, (2, 2), role, settings=None)):
        assert (one["error"], one["path"]) == (None, True), "upstream"
    assert "oldest format" in refusal(split(pools, tmp_path, "experts", made, made, (2, 2), role))


@pytest.mark.parametrize("role", ["newest", pytest.param("oldest", marks=pytest.mark.whole)])
def test_a_pipeline_of_another_depth(pools: Pools, tmp_path: Path, role: str) -> None:
    """D5."""
    was, now = {"stages": 2, "stage": 1, "precision": "bf16"}, {"stages": 1, "stage": 1, "precision": "bf16"}
    (upstream,) = values(split(pools, tmp_path, "pipeline", was, now, (2, 1), role, settings=None, probe=False))
    assert upstream["path"] == (role == "oldest"), "the newest refuses it, for another reason"
    text = refusal(split(pools, tmp_path, "pipeline", was, now, (2, 1), role))
    assert "a checkpoint of 2" in text
    arguments = {"load_optimizer_states": False, "load_lr_scheduler_states": False}
    weights = values(split(pools, tmp_path, "pipeline", was, now, (2, 1), role, arguments=arguments))
    assert [(one["error"], one["moved"]) for one in weights] == [(None, [])]
    healthy = values(split(pools, tmp_path, "pipeline", was, was, (2, 2), role))
    assert [(one["error"], one["moved"]) for one in healthy] == [(None, [])] * 2


@pytest.mark.parametrize("role", ["newest", pytest.param("oldest", marks=pytest.mark.whole)])
def test_a_tied_layer_that_is_never_saved(pools: Pools, tmp_path: Path, role: str) -> None:
    """E5."""
    pool = pools.get(role, 1)
    (one,) = values(pool.run(SCENARIOS + "unsaved", timeout=60, folder=str(tmp_path), settings=None))
    assert one["lost"], "upstream says nothing"
    results = pool.run(SCENARIOS + "unsaved", timeout=60, folder=str(tmp_path), settings={})
    (one,) = values(results)
    said = [text for text in warnings_of(results) if "in no checkpoint file" in text]
    assert len(said) == 1
    assert all(name in said[0] for name in one["lost"])


@pytest.mark.parametrize(("outside", "strict"), [(True, True), (True, False), (False, False)])
def test_a_parameter_with_expert_in_its_name(pools: Pools, tmp_path: Path, outside: bool, strict: bool) -> None:
    """E7: saved as an expert's, which means not at all."""
    made = {"ep_size": 2, "outside": outside}
    arguments = {"load_module_strict": strict, "load_optimizer_states": False}
    results = split(pools, tmp_path, "experts", made, made, (2, 2), "oldest", arguments=arguments)
    for one in values(results):
        assert (one["error"] is not None) == (outside and strict), "a strict load raises by itself"
        if one["error"]:
            assert "expert_scale" in one["error"][1]
    said = [text for text in warnings_of(results) if "expert_scale" in text]
    assert len(said) == (outside and not strict)


@pytest.mark.whole
@pytest.mark.parametrize("states", [True, False])
def test_experts_in_bf16_without_states(pools: Pools, tmp_path: Path, states: bool) -> None:
    """D10: two of four ranks raise, and one of the others goes on with masters of another group."""
    made = {"ep_size": 2, "stage": 1, "config": {"data_types": {"grad_accum_dtype": "fp32"}}}
    pool, asked = pools.get("oldest", 4), {"arguments": {"load_optimizer_states": states}, "probe": False}
    # This optimizer cannot take a step with experts on CPU.
    values(pool.run(SCENARIOS + "save_split", timeout=90, folder=str(tmp_path), kind="experts", trained=False, **made))
    upstream = values(split(pools, tmp_path, "experts", made, made, (4, 4), "oldest", settings=None, **asked))
    found = values(split(pools, tmp_path, "experts", made, made, (4, 4), "oldest", **asked))
    if states:
        assert [(one["error"], one["stale"]) for one in (*upstream, *found)] == [(None, [])] * 8
        return
    assert sorted(one["error"] is not None for one in upstream) == [False, False, True, True]
    assert any(one["stale"] and one["error"] is None for one in upstream), "and trains on"
    assert all(one["error"] is not None for one in found)
    assert any(noted(one, "partitions of another group") for one in found)


@pytest.mark.whole
@pytest.mark.parametrize("role", ["oldest", "stage0_loses_moments", "newest"])
def test_experts_in_fp32_at_stage_0(pools: Pools, tmp_path: Path, role: str) -> None:
    """A16: upstream raises on every rank, and newer releases load."""
    made = {"ep_size": 2, "stage": 0, "precision": "fp32"}
    for one in values(split(pools, tmp_path, "experts", made, made, (2, 2), role)):
        if role == "newest":
            assert (one["error"], one["moved"]) == (None, [])
        else:
            assert one["error"] == ("KeyError", "'optimizer'")
            assert noted(one, "load_optimizer_states=False loads the weights")
    arguments = {"load_optimizer_states": False}
    for one in values(split(pools, tmp_path, "experts", made, made, (2, 2), role, arguments=arguments)):
        assert (one["error"], one["moved"]) == (None, [])


@pytest.mark.parametrize("role", [pytest.param("oldest", marks=pytest.mark.whole), "newest"])
def test_a_bf16_pipeline_at_stage_0(pools: Pools, tmp_path: Path, role: str) -> None:
    """A15: newer releases raise on every rank."""
    made = {"stages": 2, "stage": 0, "precision": "bf16"}
    for one in values(split(pools, tmp_path, "pipeline", made, made, (2, 2), role)):
        if role == "oldest":
            assert (one["error"], one["moved"]) == (None, [])
        else:
            assert one["error"] == ("KeyError", "0")
            assert noted(one, "use stage 1")


@pytest.mark.whole
@pytest.mark.parametrize("role", ["oldest", "stage0_loses_moments"])
def test_mics_loads_without_the_keyword(pools: Pools, tmp_path: Path, role: str) -> None:
    """A13. gloo cannot gather its parameters, so no step is taken."""
    pool = pools.get(role, 2)
    values(pool.run(SCENARIOS + "save_split", timeout=60, folder=str(tmp_path), kind="mics", trained=False))
    for settings in (None, {"disable": "unknown-keyword"}):
        for one in values(split(pools, tmp_path, "mics", {}, {}, (2, 2), role, settings=settings, probe=False)):
            assert one["error"][0] == "TypeError"
            assert "param_shapes" in one["error"][1]
    results = split(pools, tmp_path, "mics", {}, {}, (2, 2), role, probe=False)
    for one in values(results):
        assert (one["error"], one["path"]) == (None, True)
        assert one["masters"] == one["filed"], "of the file, not of the fresh model"
    assert len([text for text in warnings_of(results) if "unknown optimizer MiCS_Optimizer" in text]) == 1
