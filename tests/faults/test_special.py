"""Loads that few people make: without an optimizer (A14), universal in part (A9), one rank after the other (G9);
and gathers that end late (G18)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Pools
from tests.support.results import RankResult, values, warnings_of
from tests.support.trees import tree

whole = pytest.mark.whole
WEIGHTS = {"load_optimizer_states": False}


def load(pools: Pools, folder: Path, role: str, **kwargs: Any) -> list[RankResult]:
    return pools.get(role, 2).run(
        "tests.faults.scenarios.special:load", timeout=60, folder=str(folder), kind="inference", **kwargs
    )


@pytest.mark.parametrize("role", ["newest", *(pytest.param(one, marks=whole) for one in ("oldest", "stage0_loses_moments"))])
def test_an_engine_without_masters_loads_its_weights(pools: Pools, tmp_path: Path, role: str) -> None:
    for settings in (None, {"disable": "no-masters"}):
        for one in values(load(pools, tmp_path / "off", role, settings=settings, arguments=WEIGHTS)):
            assert one["error"] is not None
            assert one["error"][0] == "AttributeError"
    results = load(pools, tmp_path / "on", role, settings={}, arguments=WEIGHTS)
    for one in values(results):
        assert (one["error"], one["path"], one["same"]) == (None, True, True)
    said = warnings_of(results)
    assert len([text for text in said if "writes its weights to no file" in text]) == 1


@pytest.mark.parametrize("role", [pytest.param("oldest", marks=pytest.mark.whole), "newest"])
def test_an_engine_without_an_optimizer_is_told_what_to_ask_for(pools: Pools, tmp_path: Path, role: str) -> None:
    for one in values(load(pools, tmp_path, role, settings={})):
        assert one["error"][0] == "LoadRefused"
        assert "load_optimizer_states=False" in one["error"][1]


# --- a universal load in part (A9) ------------------------------------------------------------------------------------

LOADING = "tests.faults.scenarios.loading:"


@pytest.mark.whole
@pytest.mark.parametrize(
    ("role", "stage", "told"),
    [("newest", 2, True), ("newest", 3, False), ("oldest", 1, True), ("stage0_loses_moments", 2, True),
     ("stage0_loses_moments", 3, True)],
)  # fmt: skip
def test_a_universal_load_that_brings_the_optimizer_along(
    pools: Pools, tmp_path: Path, role: str, stage: int, told: bool
) -> None:
    pool, saved = pools.get(role, 2), {"stage": stage}
    values(pool.run(LOADING + "save", timeout=60, folder=str(tmp_path), engine=saved, tags=["a"]))
    _convert(tmp_path / "a", role, stage)
    engine = {**saved, "config": {"checkpoint": {"load_universal": True}}}
    in_part: dict[str, Any] = {"load_module_only": True} if stage == 3 else WEIGHTS
    for arguments in (in_part, {}):
        results = pool.run(
            LOADING + "load", timeout=60, folder=str(tmp_path), engine=engine, arguments=arguments, settings={},
            tag="a_universal",
        )  # fmt: skip
        for one in values(results):
            assert one["error"] is None, one["error"]
            brought = any(name.startswith("moments/") for name in one["changed"])
            assert brought == (told or not arguments)
        said = [text for text in warnings_of(results) if "although it was not asked for" in text]
        assert len(said) == (told and bool(arguments))


@pytest.mark.parametrize("stage", [2, 3])
def test_a_module_only_load_that_brings_the_optimizer_along(pools: Pools, tmp_path: Path, stage: int) -> None:
    for role, told in (("first", True), ("newest", False)):
        pool, asked = pools.get(role, 2), {"folder": str(tmp_path / role), "engine": {"stage": stage}}
        values(pool.run(LOADING + "save", timeout=60, tags=["a"], **asked))
        results = pool.run(LOADING + "load", timeout=60, arguments={"load_module_only": True}, settings={}, **asked)
        for one in values(results):
            assert one["error"] is None, one["error"]
            assert any(name.startswith("moments/") for name in one["changed"]) == told
        assert len([text for text in warnings_of(results) if "although it was not asked for" in text]) == told


def _convert(folder: Path, role: str, stage: int) -> None:
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", str(folder),
               "--output_folder", f"{folder}_universal", *(["--inject_missing_state"] if stage < 3 else [])]  # fmt: skip
    environ = {**os.environ, "PYTHONPATH": str(tree(role).path), "DS_ACCELERATOR": "cpu",
               "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environ)
    assert done.returncode == 0, done.stderr


# --- one rank after the other (G9) ------------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize("role", ["oldest", "newest"])
def test_loading_in_turn_on_two_nodes_is_refused(pools: Pools, tmp_path: Path, role: str) -> None:
    """Two nodes of one rank each, as far as the launcher's variables tell."""
    engine = {"stage": 3, "zero": {"pipeline_loading_checkpoint": True}}
    one_node, two_nodes = pools.get(role, 2), pools.get(role, 2, env={"LOCAL_RANK": "0"})
    values(one_node.run(LOADING + "save", timeout=60, folder=str(tmp_path), engine=engine, tags=["a"]))
    arguments = {"folder": str(tmp_path), "engine": engine}
    for one in values(two_nodes.run(LOADING + "load", timeout=60, settings={}, **arguments)):
        assert one["error"][0] == "LoadRefused"
        assert "rank 1 is the first of another node" in one["error"][1]
        assert one["changed"] == []
    if role == "oldest":
        upstream = two_nodes.run(LOADING + "load", timeout=15, settings=None, **arguments)
        assert any(one.error is not None for one in upstream), "rank 0 tells a rank that does not listen"
    healthy = one_node.run(LOADING + "load", timeout=60, settings={}, probe=True, **arguments)
    for one in values(healthy):
        assert (one["error"], one["moved"]) == (None, [])
        assert set(one["report"].values()) == {"restored"}
    assert warnings_of(healthy) == []


# --- weights that are gathered late (G18) -----------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["oldest", pytest.param("stage0_loses_moments", marks=pytest.mark.whole)])
def test_weights_that_are_gathered_late(pools: Pools, tmp_path: Path, role: str) -> None:
    for one in values(load_late(pools, tmp_path, role, settings=None)):
        assert (one["error"], one["path"], one["same"]) == (None, True, False), "upstream reports success"
    found = values(load_late(pools, tmp_path, role, settings={}))
    assert {one["error"] for one in found} == {found[0]["error"]}
    kind, text = found[0]["error"]
    assert kind == "LoadIncomplete"
    assert "weights mismatch" in text
    for mode in ("warn", "observe"):
        results = load_late(pools, tmp_path, role, settings={"mode": mode})
        assert [(one["error"], one["report"]["weights"]) for one in values(results)] == [(None, "mismatch")] * 2
        lost = [line for line in warnings_of(results) if "weights mismatch" in line]
        assert len(lost) == (mode == "warn")


@pytest.mark.parametrize(("role", "late"), [("newest", True), ("oldest", False)])
def test_gathers_that_are_waited_for_lose_nothing(pools: Pools, tmp_path: Path, role: str, late: bool) -> None:
    results = load_late(pools, tmp_path, role, settings={}, late=late)
    for one in values(results):
        assert (one["error"], one["path"], one["same"]) == (None, True, True)
    assert len(warnings_of(results)) == 1, "optimizer states were left out"


def load_late(pools: Pools, folder: Path, role: str, late: bool = True, **kwargs: Any) -> list[RankResult]:
    return pools.get(role, 2).run(
        "tests.faults.scenarios.special:load", timeout=60, folder=str(folder), kind="trained", late=late,
        arguments=WEIGHTS, **kwargs,
    )  # fmt: skip
