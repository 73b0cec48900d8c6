"""Kinds of engines by kinds of faults: each one stops the load on all ranks, with the right component named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.kinds import arguments
from tests.support.pool import Pools
from tests.support.results import values, warnings_of

ZERO = ["zero2-fp16-offload", "zero3-bf16", "bf16-optimizer"]
STAGE0 = ["stage0-bf16", "stage0-fp16", "stage0-fp32"]
KINDS = [*ZERO, *STAGE0]
#: These hold fp32 masters next to 16-bit weights.
MASTERS = [kind for kind in KINDS if kind != "stage0-fp32"]

#: fault -> kinds that can have it, component, outcomes that say so.
MEASURED: dict[str, tuple[list[str], str, set[str]]] = {
    "zero_one_moment": (KINDS, "moments", {"mismatch", "fresh"}),
    "zero_moments": (KINDS, "moments", {"fresh"}),
    "no_moments": (KINDS, "moments", {"fresh"}),
    "flip_a_bit": (KINDS, "moments", {"mismatch"}),
    "step_off": (KINDS, "optimizer_step", {"mismatch"}),
    "lr_off": (KINDS, "param_groups", {"mismatch"}),
    "stale_masters": (MASTERS, "masters", {"mismatch"}),
    "scale_off": (["zero2-fp16-offload", "stage0-fp16"], "loss_scaler", {"mismatch"}),
    "bit rot in a shard": (ZERO, "", {"mismatch"}),
    "bit rot in the model file": (STAGE0, "", {"mismatch"}),
}

#: fault -> kinds, text of the refusal. The engine is untouched.
REFUSED = {
    "param groups swapped": (ZERO, "the optimizer state"),
    "another tag's shard": (ZERO, "different saves"),
    "another rank's shard": (ZERO, "content of another"),
    "no scheduler saved": (KINDS, "load_lr_scheduler_states=False"),
}


def cases(table: dict[str, tuple[object, ...]]) -> list[tuple[str, str]]:
    return [(kind, fault) for fault, (kinds, *_) in table.items() for kind in kinds]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("kind", "fault"), cases(MEASURED))
def test_measured(pools: Pools, tmp_path: Path, kind: str, fault: str) -> None:
    _, component, outcomes = MEASURED[fault]
    found = values(run(pools, tmp_path, kind, fault))
    assert {one["error"] for one in found} == {found[0]["error"]}, "the same on all ranks"
    assert found[0]["error"] is not None, found
    assert found[0]["error"][0] == "LoadIncomplete", found[0]["error"][1]
    for one in found:
        said = {one["lost"].get(component)} if component else set(one["lost"].values())
        assert said <= outcomes
        assert said, one


@pytest.mark.parametrize(("kind", "fault"), cases(REFUSED))
def test_refused(pools: Pools, tmp_path: Path, kind: str, fault: str) -> None:
    found = values(run(pools, tmp_path, kind, fault))
    assert {one["error"] for one in found} == {found[0]["error"]}
    assert found[0]["error"][0] == "LoadRefused"
    assert REFUSED[fault][1] in found[0]["error"][1]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_fault(pools: Pools, tmp_path: Path, kind: str) -> None:
    results = run(pools, tmp_path, kind, "")
    assert values(results) == [{"error": None, "lost": {}}] * 2
    assert warnings_of(results) == []


def run(pools: Pools, folder: Path, kind: str, fault: str):  # type: ignore[no-untyped-def]
    return pools.get("newest", 2).run(
        "tests.faults.scenarios.table:load", timeout=120, folder=str(folder), saved=arguments(kind), fault=fault
    )
