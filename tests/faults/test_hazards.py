"""Where zero, missing or other values are right: a verifier that shouts there is switched off.

``HAZARDS`` goes through the catalogue of such cases by number: the tests that run it, healthy and silent, or why none can.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.pool import Pools
from tests.support.results import values, warnings_of

KINDS = "test_a_resume_is_silent_and_the_same_run"  # every engine of tests/live/kinds.py

#: number -> what is right although it looks wrong, tests.
HAZARDS: dict[int, tuple[str, list[str]]] = {
    1: ("no moments before the first step", ["test_a_checkpoint_from_before_the_first_step"]),
    2: ("no moments while every step overflows", [KINDS]),
    3: ("optimizers with other state than Adam's, or none", [KINDS]),
    4: ("zero stretches: parameters without a gradient, tied ones", [KINDS]),
    5: ("frozen parameters without masters and moments", [KINDS]),
    6: ("state that upstream writes to no shard", ["test_the_engine_that_saved_gets_everything_back"]),
    8: ("lean, padded and differently padded partitions", [KINDS, "test_every_family_is_restored"]),
    9: ("a rank that holds nothing but padding", ["test_more_ranks_than_elements"]),
    10: ("size-0 parameters in files and engines of stage 3", [KINDS]),
    11: ("empty param groups at stage 3 between steps", [KINDS]),
    12: ("parameters without elements", [KINDS]),
    13: ("one step more than the engine counts", [KINDS]),
    15: ("a step of another type", ["test_twins_are_let_through", "test_values_are_compared_by_value"]),
    16: ("hyperparameters that only one side has", ["test_hyperparameters_of_another_torch"]),
    19: ("loads that ask for less", ["test_a_partial_load_is_one_warning", "test_a_custom_load_fn_is_measured"]),
    20: ("masters made from 16-bit weights", ["test_a_partial_load_is_one_warning"]),
    21: ("adapters that the checkpoint cannot hold", ["test_adapters_that_the_checkpoint_cannot_hold"]),
    22: ("another number of ranks", ["test_the_weights_alone", "test_at_stage_0_every_rank_reads_the_same_file"]),
    23: (
        "classes that read each other's shards",
        ["test_stages_1_and_2_are_one", "test_bf16_optimizer_and_stage_1_read_each_other"],
    ),
    25: ("masters and moments in bf16", [KINDS]),
    27: ("buffers in another dtype than the parameters", [KINDS]),
    28: ("client_state with keys of DeepSpeed's own", ["test_a_tag_of_any_type"]),
    29: ("names that torch.compile changes", [KINDS]),
    30: ("engines without an optimizer", ["test_an_engine_without_optimizer"]),
    31: ("ranks that return early", ["test_one_rank_finds_nothing", "test_one_engine_loads_twice"]),
    33: ("memory-mapped tensors", ["test_memory_mapped_tensors"]),
}

#: number -> why no test runs it.
NOT_RUN = {
    7: "1-bit optimizers need NCCL or MPI; their moments are `not checked`",
    14: "FusedAdam needs a GPU",
    17: "a fault of its own in the catalogue of upstream: A11",
    18: "a fault of its own in the catalogue of upstream: A11",
    24: "universal checkpoints have no reader yet",
    26: "an edit after the load is what the first-step checks are for: tests/faults/test_first_step.py",
    32: "how to compare, not what: no tensor data is read a second time",
    34: "how to read an engine: nothing is gathered",
}


def test_every_hazard_has_a_test_or_a_reason() -> None:
    assert sorted([*HAZARDS, *NOT_RUN]) == list(range(1, 35))
    there = {
        node.name
        for path in Path(ROOT, "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    named = {name for _, tests in HAZARDS.values() for name in tests}
    assert named <= there, sorted(named - there)


def run(pools: Pools, scenario: str, role: str = "newest", **kwargs: Any) -> Any:
    return pools.get(role, 2).run(f"tests.faults.scenarios.hazards:{scenario}", timeout=120, **kwargs)


def save(pools: Pools, folder: Path, engine: dict[str, Any], role: str = "newest") -> None:
    values(pools.get(role, 2).run(
        "tests.faults.scenarios.loading:save", timeout=120, folder=str(folder), engine=engine, tags=["a"]
    ))  # fmt: skip


def assert_silent(results: Any) -> None:
    for one in values(results):
        assert one["error"] is None, one["error"]
        assert set(one["report"].values()) == {"restored"}
        assert one["moved"] == []
    assert warnings_of(results) == []


@pytest.mark.parametrize("stage", [2, 3])
def test_hyperparameters_of_another_torch(pools: Pools, tmp_path: Path, stage: int) -> None:
    engine = {"stage": stage, "groups": 2}
    save(pools, tmp_path, engine)
    assert_silent(run(pools, "load_after", folder=str(tmp_path), engine=engine, change="other torch"))


@pytest.mark.parametrize("role", ["oldest", "newest"])
@pytest.mark.parametrize("engine", [{"stage": 2}, {"stage": 3}, {"stage": 0, "precision": "fp32"}], ids=str)
def test_memory_mapped_tensors(pools: Pools, tmp_path: Path, engine: dict[str, Any], role: str) -> None:
    save(pools, tmp_path, engine, role)
    assert_silent(run(pools, "load_lazily", role, folder=str(tmp_path), engine=engine))


@pytest.mark.parametrize("stage", [0, 2])
def test_adapters_that_the_checkpoint_cannot_hold(pools: Pools, tmp_path: Path, stage: int) -> None:
    results = run(pools, "load_with_adapters", folder=str(tmp_path), stage=stage)
    for one in values(results):
        assert one["error"] is None, one["error"]
        assert one["report"]["frozen"] == "restored"
        assert one["moved"] == []
    said = warnings_of(results)
    assert len(said) == 1, said
    assert "unused.weight" in said[0]
