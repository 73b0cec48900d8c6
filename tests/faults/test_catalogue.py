"""Faults of the catalogue that need no patch of their own: upstream says nothing, the verdict or the look before it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Pools
from tests.support.results import RankResult, values, warnings_of

SCENARIOS = "tests.faults.scenarios.loading:"


def loaded(
    pools: Pools, folder: Path, saved: dict[str, Any], now: dict[str, Any], settings: dict[str, Any] | None,
    role: str = "newest", **kwargs: Any,
) -> list[RankResult]:  # fmt: skip
    pool = pools.get(role, 2)
    if not (folder / "a").exists():
        values(pool.run(SCENARIOS + "save", timeout=120, folder=str(folder), engine=saved, tags=["a"]))
    return pool.run(SCENARIOS + "load", timeout=120, folder=str(folder), engine=now, settings=settings, **kwargs)


#: id -> engine that saved, engine that loads, arguments, error, texts in it.
SILENT_UPSTREAM: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str, tuple[str, ...]]] = {
    "A2": ({"stage": 3}, {"stage": 3}, {"load_module_only": True}, "LoadIncomplete", ("weights mismatch",)),
    "D2": ({"stage": 2, "zero": {"round_robin_gradients": True}}, {"stage": 2}, {}, "LoadIncomplete",
           ("moments mismatch", "masters mismatch", "round_robin_gradients")),
    "D8": ({"stage": 2, "optimizer": "adamw"}, {"stage": 2, "optimizer": "lion"}, {}, "LoadRefused",
           ("another kind of optimizer", "Lion", "eps")),
    "D8 Adam": ({"stage": 2, "optimizer": "adam"}, {"stage": 2, "optimizer": "adamw"}, {}, "LoadIncomplete",
                ("param_groups mismatch", "decoupled_weight_decay")),
    "D8 stage 0": ({"stage": 0, "precision": "fp32", "optimizer": "adamw"},
                   {"stage": 0, "precision": "fp32", "optimizer": "rmsprop"}, {}, "LoadRefused", ("RMSprop", "alpha")),
}  # fmt: skip


@pytest.mark.parametrize("fault", SILENT_UPSTREAM)
def test_what_upstream_does_not_say(pools: Pools, tmp_path: Path, fault: str) -> None:
    saved, now, arguments, kind, texts = SILENT_UPSTREAM[fault]
    for one in values(loaded(pools, tmp_path, saved, now, None, arguments=arguments)):
        assert (one["error"], bool(one["path"])) == (None, True), "upstream reports success"
    found = values(loaded(pools, tmp_path, saved, now, {}, arguments=arguments))
    assert {one["error"] for one in found} == {found[0]["error"]}
    assert found[0]["error"] is not None
    assert found[0]["error"][0] == kind, found[0]["error"][1]
    for text in texts:
        assert text in found[0]["error"][1]
    if kind == "LoadRefused":
        assert [one["changed"] for one in found] == [[], []]


HEALTHY: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "A6 at stage 2": ({"stage": 2}, {"stage": 2}, {"load_optimizer_states": False}),
    "D2 on both sides": ({"stage": 2, "zero": {"round_robin_gradients": True}},
                         {"stage": 2, "zero": {"round_robin_gradients": True}}, {}),
    "D8 amsgrad": ({"stage": 3, "optimizer": "amsgrad"}, {"stage": 3, "optimizer": "amsgrad"}, {}),
    "D8 torch's Adam for DeepSpeed's": ({"stage": 2, "optimizer": "config:AdamW"}, {"stage": 2, "optimizer": "adamw"}, {}),
    "offload switched on": ({"stage": 2}, {"stage": 2, "offload": "cpu"}, {}),
    "offload switched off at stage 3": ({"stage": 3, "offload": "cpu", "param_offload": "cpu"}, {"stage": 3}, {}),
}  # fmt: skip


@pytest.mark.parametrize("twin", HEALTHY)
def test_twins_are_let_through(pools: Pools, tmp_path: Path, twin: str) -> None:
    saved, now, arguments = HEALTHY[twin]
    results = loaded(pools, tmp_path, saved, now, {}, arguments=arguments, probe=True)
    for one in values(results):
        assert one["error"] is None, one["error"]
        assert one["moved"] == []
        asked = {name: said for name, said in one["report"].items() if said != "left out"}
        assert set(asked.values()) == {"restored"}
    said = warnings_of(results)
    assert len(said) == (1 if arguments else 0)


def test_a_scheduler_that_the_engine_has_no_place_for_is_one_warning(pools: Pools, tmp_path: Path) -> None:
    """F1: upstream drops the state, out of ``client_state`` too."""
    results = loaded(pools, tmp_path, {"stage": 2, "scheduler": "warmup"}, {"stage": 2}, {})
    assert [one["error"] for one in values(results)] == [None, None]
    said = warnings_of(results)
    assert len(said) == 1
    assert "this engine has no place for it" in said[0]


@pytest.mark.parametrize("stage", [2, 3])
def test_a_parameter_more_is_upstreams_own_error_with_what_it_left_behind(
    pools: Pools, tmp_path: Path, stage: int
) -> None:
    """D3: this release raises; the exception stays the object that it is, and every rank has it."""
    saved, now = {"stage": stage, "model": {"frozen": True}}, {"stage": stage}
    for one in values(loaded(pools, tmp_path, saved, now, {})):
        assert one["error"] is not None
        assert one["error"][0] == "RuntimeError"
        assert any("not so: " in note and "masters (mismatch)" in note for note in one["notes"]) or not one["notes"]


def test_an_unfrozen_layer_is_caught(pools: Pools, tmp_path: Path) -> None:
    """D3, in a release that loads it without a word."""
    saved, now = {"stage": 2, "model": {"frozen": True}}, {"stage": 2}
    for one in values(loaded(pools, tmp_path, saved, now, None, role="oldest")):
        assert (one["error"], bool(one["path"])) == (None, True)
    for one in values(loaded(pools, tmp_path, saved, now, {}, role="oldest")):
        assert one["error"][0] == "LoadIncomplete"
        assert "masters mismatch" in one["error"][1]
        assert "first.weight" in one["error"][1]


@pytest.mark.parametrize("stage", [0, 2])
@pytest.mark.parametrize("copies", [True, False])
def test_a_custom_load_fn_is_measured(pools: Pools, tmp_path: Path, stage: int, copies: bool) -> None:
    """E2."""
    pool, engine = pools.get("newest", 2), {"stage": stage, "precision": "fp32"}
    values(pool.run(SCENARIOS + "save", folder=str(tmp_path), engine=engine, tags=["a"]))
    arguments = {"folder": str(tmp_path), "engine": engine, "copies": copies}
    for one in values(pool.run(SCENARIOS + "load_with_own_function", settings=None, **arguments)):
        assert one["error"] is None, "upstream trusts the function"
    for one in values(pool.run(SCENARIOS + "load_with_own_function", settings={}, **arguments)):
        if copies:
            assert one["error"] is None
        else:
            assert one["error"][0] == "LoadIncomplete"
            assert "weights mismatch" in one["error"][1]
            assert "last.weight" in one["error"][1]


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("excluded", [True, False])
def test_frozen_weights_that_were_not_saved(pools: Pools, tmp_path: Path, stage: int, excluded: bool) -> None:
    """E3: they keep their initial values under load_module_strict=False, which is usual with adapters."""
    pool, engine = pools.get("newest", 2), {"stage": stage, "model": {"frozen": True}}
    arguments = {"exclude_frozen_parameters": True} if excluded else {}
    values(pool.run(SCENARIOS + "save", folder=str(tmp_path), engine=engine, tags=["a"], arguments=arguments))
    results = loaded(pools, tmp_path, engine, engine, {}, arguments={"load_module_strict": False})
    assert [one["error"] for one in values(results)] == [None, None]
    said = warnings_of(results)
    assert len(said) == excluded
    assert all("frozen: left out" in text and "first.weight" in text for text in said)
