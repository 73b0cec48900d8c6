"""Engines that the tests of this room build: name -> keyword arguments of ``build_engine``."""

from __future__ import annotations

from typing import Any

#: All that a default load asks for.
ALL = frozenset(
    (
        "weights", "frozen", "masters", "moments", "optimizer_step", "param_groups", "loss_scaler", "lr_scheduler",
        "counters",
    )
)  # fmt: skip

#: One for each reader and placement of state.
FAMILIES: dict[str, dict[str, Any]] = {
    "zero1-bf16": {"stage": 1},
    "zero2-bf16": {"stage": 2},
    "zero2-fp16-offload": {"stage": 2, "precision": "fp16", "offload": "cpu"},
    "zero1-fp32": {"stage": 1, "precision": "fp32"},
    "zero3-bf16": {"stage": 3},
    "zero3-fp16-offload": {"stage": 3, "precision": "fp16", "offload": "cpu"},
    "zero3-params-offload": {"stage": 3, "offload": "cpu", "param_offload": "cpu"},
    "stage0-bf16": {"stage": 0},
    "stage0-fp16": {"stage": 0, "precision": "fp16"},
    "stage0-fp32": {"stage": 0, "precision": "fp32"},
    "bf16-optimizer": {"stage": 1, "config": {"data_types": {"grad_accum_dtype": "fp32"}}},
}

_BF16_STATES = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}
_AUTOCAST = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
#: Every one of the first steps overflows and is skipped.
_OVERFLOWING = {"fp16": {"enabled": True, "initial_scale_power": 28}}

#: Optimizers with other state than Adam's, and engines and models that are easily got wrong.
SPECIAL: dict[str, dict[str, Any]] = {
    **{
        f"{optimizer}-stage{stage}": {"stage": stage, "optimizer": optimizer, "precision": precision}
        for optimizer in ("adam", "amsgrad", "sgd", "sgd_momentum", "rmsprop", "lion")
        for stage, precision in ((0, "fp32"), (2, "bf16"), (3, "bf16"))
    },
    # ZeRO builds its own Adagrad from the defaults of the one it is given, without param groups; ZeRO-3 cannot load it.
    "adagrad-stage0": {"stage": 0, "optimizer": "adagrad", "precision": "fp32"},
    "adagrad-stage2": {"stage": 2, "optimizer": "adagrad", "groups": 1},
    **{
        f"muon-stage{stage}": {"stage": stage, "optimizer": "config:Muon", "zero": {"reduce_scatter": stage < 3}}
        for stage in (0, 1, 2, 3)
    },
    "frozen-stage0": {"stage": 0, "model": {"frozen": True}},
    "frozen-stage2": {"stage": 2, "model": {"frozen": True}},
    "frozen-stage3": {"stage": 3, "model": {"frozen": True}},
    "tied-stage2": {"stage": 2, "model": {"tied": True}},
    "tied-stage3": {"stage": 3, "model": {"tied": True}},
    "unused-stage2": {"stage": 2, "model": {"unused": True}},
    "unused-stage3": {"stage": 3, "model": {"unused": True}},
    "round-robin": {"stage": 2, "zero": {"round_robin_gradients": True}},
    "persistent": {"stage": 3, "zero": {"stage3_param_persistence_threshold": 100}},
    "all-persistent": {"stage": 3, "zero": {"stage3_param_persistence_threshold": 10_000}},
    "sub-groups": {"stage": 3, "zero": {"sub_group_size": 200}},
    "sub-groups-offload": {"stage": 3, "offload": "cpu", "zero": {"sub_group_size": 200}},
    "secondary-partition": {"stage": 3, "hpz": 2},
    "small-stage2": {"stage": 2, "model": {"width": 1, "depth": 1}},
    "small-stage3": {"stage": 3, "model": {"width": 1, "depth": 1}},
    "elastic": {"stage": 1, "zero": {"elastic_checkpoint": True}, "optimizer": "counting_lion"},
    **{
        f"{name}-stage{stage}": {"stage": stage, **engine}
        for stage in (2, 3)
        for name, engine in {
            "overflow": {"precision": "fp16", "config": _OVERFLOWING},
            "autocast": {"precision": "fp32", "config": _AUTOCAST},
            "bf16-states": {"config": _BF16_STATES},
            "cpuadam": {"offload": "cpu", "optimizer": "config:CPUAdam"},
        }.items()
    },
    "bf16-states-cpuadam": {"stage": 2, "offload": "cpu", "optimizer": "config:CPUAdam", "config": _BF16_STATES},
    "empty-stage0": {"stage": 0, "model": {"empty": True}},
    "empty-stage2": {"stage": 2, "model": {"empty": True}},
    "compiled": {"stage": 2, "compiled": True},
    "no-scheduler": {"stage": 2, "scheduler": None},
    "one-group": {"stage": 2, "groups": 1},
}

#: Engines that the oldest tree does not have, or that would only compile for a minute again.
NEWER = frozenset(name for name in SPECIAL if name.startswith(("muon", "bf16-states", "autocast", "cpuadam", "empty")))


def arguments(name: str) -> dict[str, Any]:
    """Keyword arguments for ``build_engine``: two groups and a scheduler unless the engine says otherwise."""
    return {"groups": 2, "scheduler": "warmup", **{**FAMILIES, **SPECIAL}[name]}
