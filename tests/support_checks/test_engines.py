"""Healthy DeepSpeed restores bit for bit on every tree, so what the fault tests find is dspatch's or the fault's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Pools
from tests.support.results import values

HERE = "tests.support_checks.scenarios"

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "zero2-fp16-offload": {
        "stage": 2, "precision": "fp16", "offload": "cpu", "model": {"checkpointing": True}, "scheduler": "warmup",
    },
    "zero1-bf16-two-groups": {"stage": 1, "precision": "bf16", "groups": 2, "scheduler": "warmup_decay"},
    "zero1-fp32-adagrad": {"stage": 1, "precision": "fp32", "optimizer": "adagrad"},
    "zero3-bf16": {"stage": 3, "precision": "bf16", "groups": 2, "model": {"frozen": True}},
    "zero3-fp16-offload": {"stage": 3, "precision": "fp16", "offload": "cpu", "param_offload": "cpu"},
    "stage0-fp32": {"stage": 0, "precision": "fp32", "groups": 2},
    "stage0-fp16": {"stage": 0, "precision": "fp16"},
    "zero2-bf16-lion-accumulation": {"stage": 2, "precision": "bf16", "optimizer": "lion", "accumulation": 2},
    "zero1-sgd-momentum-tied": {"stage": 1, "precision": "bf16", "optimizer": "sgd_momentum", "model": {"tied": True}},
    "zero2-adam-of-deepspeed": {"stage": 2, "precision": "bf16", "optimizer": "config:AdamW"},
}  # fmt: skip


@pytest.mark.parametrize("role", ["oldest", "newest"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_healthy_load_is_bit_for_bit(pools: Pools, tmp_path: Path, role: str, name: str) -> None:
    results = pools.get(role).run(f"{HERE}:save_load", folder=str(tmp_path), tag="step_4", **CONFIGURATIONS[name])
    for found in values(results):
        assert found["path"]
        assert any(key.startswith("moments/") for key in found["keys"]) and found["moved"]
        assert found["different"] == []
        assert found["resumed"] == found["rest"]
        assert found["probe"] == []


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_probe_sees_stale_masters(pools: Pools, stage: int) -> None:
    assert all(values(pools.get("newest").run(f"{HERE}:stale_masters", stage=stage)))


def test_snapshots_are_copies_and_compare_bytes(pools: Pools) -> None:
    pool = pools.get("newest")
    assert values(pool.run(f"{HERE}:snapshot_is_a_copy")) == [True, True]
    assert values(pool.run(f"{HERE}:bytes_decide")) == [(True, False)] * 2
