"""What the repairs of single faults restore, value by value, in the oldest and newest releases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Pools
from tests.support.results import RankResult, noted, values, warnings_of

ROLES = [*(pytest.param(role, marks=pytest.mark.whole) for role in ("oldest", "stage0_loses_moments")), "newest"]
CONFIGURED = ["LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"]
SCHEDULERS = ["LambdaLR", "LambdaLR of tensors", "OneCycleLR", "SequentialLR"]
LEFT_OUT: dict[str, Any] = {"load_optimizer_states": False}


# --- the learning rate of the first step (F2) -------------------------------------------------------------------------


def rates(pools: Pools, folder: Path, role: str = "newest", **kwargs: Any) -> list[RankResult]:
    asked = {"arguments": LEFT_OUT, "settings": {}, **kwargs}
    return pools.get(role, 2).run("tests.faults.scenarios.schedules:rates", timeout=60, folder=str(folder), **asked)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "scheduler",
    [name if name in ("WarmupLR", "LambdaLR") else pytest.param(name, marks=pytest.mark.whole) for name in
     (*CONFIGURED, *SCHEDULERS)],
)
def test_rate_of_the_first_step_is_that_of_the_schedule(
    pools: Pools, tmp_path: Path, scheduler: str, role: str
) -> None:
    engine = {"stage": 2, "groups": 2 if scheduler not in CONFIGURED else 1, "scheduler": scheduler}
    for one in values(rates(pools, tmp_path / "off", role, engine=engine, settings=None)):
        assert one["loaded"] != one["saved"], "upstream"
    results = rates(pools, tmp_path / "on", role, engine=engine)
    for one in values(results):
        assert one["error"] is None
        if scheduler == "OneCycleLR":  # it moves the betas, too, and its state names none
            assert [rate for rate, _ in one["loaded"]] == [rate for rate, _ in one["saved"]]
        else:
            assert one["loaded"] == one["saved"]
        assert one["resumed"] == one["next"]
    assert len([text for text in results[0].said(20) if "learning rate was set" in text]) <= 1
    assert len(warnings_of(results)) == 1, "of the partial load"


@pytest.mark.parametrize("stage", [0, *(pytest.param(stage, marks=pytest.mark.whole) for stage in (1, 3))])
def test_rate_of_the_first_step_is_loud_without_the_repair(pools: Pools, tmp_path: Path, stage: int) -> None:
    engine = {"stage": stage, "scheduler": "WarmupLR"}
    for one in values(rates(pools, tmp_path, engine=engine, settings={"disable": "first-rate"})):
        assert "learning rate of the restored schedule" in one["error"]


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [({}, 4), ({**LEFT_OUT, "load_lr_scheduler_states": False}, 4), (LEFT_OUT, 0), ({"load_module_only": True}, 4)],
)
def test_a_rate_that_was_asked_for_stays(
    pools: Pools, tmp_path: Path, arguments: dict[str, Any], steps: int
) -> None:
    engine = {"stage": 2, "scheduler": "WarmupLR"}
    results = rates(pools, tmp_path, engine=engine, arguments=arguments, steps=steps)
    for one, result in zip(values(results), results, strict=True):
        assert one["error"] is None
        assert (one["loaded"] == one["saved"]) == (not arguments or not steps)
        assert not any("learning rate was set" in text for text in result.said(10))


# --- the scheduler that the engine does not own (F1) ------------------------------------------------------------------


def left_over(pools: Pools, folder: Path, role: str = "newest", **kwargs: Any) -> list[RankResult]:
    asked = {"arguments": {}, "settings": {}, **kwargs}
    return pools.get(role, 2).run("tests.faults.scenarios.schedules:left_over", timeout=60, folder=str(folder), **asked)


@pytest.mark.parametrize("role", ROLES)
def test_scheduler_without_a_place_is_handed_to_the_caller(pools: Pools, tmp_path: Path, role: str) -> None:
    for one in values(left_over(pools, tmp_path / "off", role, settings=None)):
        assert (one["client"], one["mine"]) == (None, 7), "upstream filters it out"
    results = left_over(pools, tmp_path / "on", role)
    for one in values(results):
        assert one["client"] == one["saved"]
        assert one["mine"] == 7
    said = warnings_of(results)
    assert len(said) == 1
    assert "client_state['lr_scheduler']" in said[0]


def test_scheduler_without_a_place_is_a_warning_without_the_repair(pools: Pools, tmp_path: Path) -> None:
    results = left_over(pools, tmp_path, settings={"disable": "client-scheduler"})
    assert [one["client"] for one in values(results)] == [None, None]
    assert any("this engine has no place for it" in text for text in warnings_of(results))


def test_scheduler_that_was_not_asked_for_comes_back_by_upstream(pools: Pools, tmp_path: Path) -> None:
    results = left_over(pools, tmp_path, arguments={"load_lr_scheduler_states": False})
    assert all(one["client"] == one["saved"] for one in values(results))
    assert not any("no place for it" in text for text in warnings_of(results))


# --- module-only at ZeRO-3 (A2) ---------------------------------------------------------------------------------------


def weights_of(pools: Pools, folder: Path, role: str = "newest", **kwargs: Any) -> list[Any]:
    arguments = {"tags": ["early", "late"], "asked": "early", "latest": True, "flags": {"load_module_only": True}}
    return values(
        pools.get(role, 2).run(
            "tests.faults.scenarios.loading:weights_of_tags", timeout=60, folder=str(folder), **{**arguments, **kwargs}
        )
    )


@pytest.mark.parametrize("role", ROLES)
def test_module_only_restores_the_weights_of_the_tag(pools: Pools, tmp_path: Path, role: str) -> None:
    for one in weights_of(pools, tmp_path / "off", role, settings=None):
        assert (one["error"], one["weights_of"]) == (None, []), "upstream: of no tag"
    for one in weights_of(pools, tmp_path / "on", role, settings={}):
        assert (one["error"], one["weights_of"]) == (None, ["early"])


def test_module_only_is_loud_without_the_repair(pools: Pools, tmp_path: Path) -> None:
    for one in weights_of(pools, tmp_path, settings={"disable": "module-only"}):
        assert one["error"][0] == "LoadIncomplete"
        assert "weights mismatch" in one["error"][1]


# --- a keyword that the bf16 optimizer does not take (A12) ------------------------------------------------------------


def test_bf16_loads_without_the_keyword(pools: Pools, tmp_path: Path) -> None:
    pool, asked = pools.get("first", 2), {"folder": str(tmp_path), "engine": {"stage": 0}}
    values(pool.run("tests.faults.scenarios.loading:save", timeout=60, tags=["a"], **asked))
    load = "tests.faults.scenarios.loading:load"
    for settings in (None, {"disable": "unknown-keyword-bf16"}):
        for one in values(pool.run(load, timeout=60, settings=settings, **asked)):
            assert one["error"][0] == "TypeError"
            assert "load_serial" in one["error"][1]
            assert settings is None or noted(one, "unknown-keyword-bf16")
    for mode in ("strict", "warn", "observe"):
        results = pool.run(load, timeout=60, settings={"mode": mode}, probe=True, **asked)
        for one in values(results):
            assert (one["error"], one["moved"]) == (None, [])
            assert set(one["report"].values()) == {"restored"}
        assert warnings_of(results) == []
