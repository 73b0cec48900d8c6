"""Real DeepSpeed engines on CPU, small enough to build in a tenth of a second. For use inside rank processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import deepspeed
import torch
from torch import nn

from tests.support.models import Lion, TinyNet, batch

#: name -> (class, keyword arguments that are not lr or weight decay). Learning rates suit ``TinyNet``.
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {"lr": 3e-3}),
    "adam": (torch.optim.Adam, {"lr": 3e-3}),
    "amsgrad": (torch.optim.Adam, {"lr": 3e-3, "amsgrad": True}),
    "sgd": (torch.optim.SGD, {"lr": 3e-2}),
    "sgd_momentum": (torch.optim.SGD, {"lr": 3e-2, "momentum": 0.9}),
    "adagrad": (torch.optim.Adagrad, {"lr": 1e-2}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 1e-3}),
    "lion": (Lion, {"lr": 1e-3}),
}

_WEIGHT_DECAY = 0.05
_BATCH = 4

_SCHEDULERS: dict[str, dict[str, Any]] = {
    "warmup": {"type": "WarmupLR", "params": {"warmup_min_lr": 0.0, "warmup_max_lr": 0.01, "warmup_num_steps": 10}},
    "warmup_decay": {
        "type": "WarmupDecayLR",
        "params": {"warmup_min_lr": 0.0, "warmup_max_lr": 0.01, "warmup_num_steps": 5, "total_num_steps": 40},
    },
}


def build_engine(
    stage: int = 0,
    precision: str = "bf16",
    offload: str | None = None,
    optimizer: str = "adamw",
    groups: int = 1,
    scheduler: str | Callable[[Any], Any] | None = None,
    seed: int = 0,
    *,
    param_offload: str | None = None,
    hpz: int | None = None,
    accumulation: int = 1,
    compiled: bool = False,
    model: Mapping[str, Any] | nn.Module | None = None,
    zero: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    mpu: Any = None,
) -> Any:
    """An engine around a ``TinyNet``.

    Args:
        stage: ZeRO stage, 0 to 3.
        precision: ``bf16``, ``fp16`` (dynamic loss scale) or ``fp32``.
        offload: ``"cpu"`` puts the optimizer there.
        optimizer: a name in ``OPTIMIZERS``, or one of DeepSpeed's own as ``"config:AdamW"`` (``"config:CPUAdam"`` with
            ``offload``: DeepSpeed compiles it for a minute at its first use).
        groups: 1, or 2 (biases and norms with another learning rate and without weight decay).
        scheduler: ``"warmup"`` or ``"warmup_decay"`` of DeepSpeed, or a function that makes one from the optimizer.
        seed: of the weights; equal on all ranks.
        param_offload: ``"cpu"`` puts ZeRO-3 parameters there.
        hpz: size of the secondary partition (ZeRO++).
        accumulation: micro-batches for one step.
        compiled: wrap the model with ``torch.compile``, which puts ``_orig_mod.`` in front of its names.
        model: keyword arguments of ``TinyNet``, or a module.
        zero: more entries for ``zero_optimization``.
        config: more top-level entries.
        mpu: of ``deepspeed.initialize``: groups of ranks that are more than data-parallel.

    Returns:
        The ``DeepSpeedEngine``.
    """
    torch.manual_seed(seed)
    module = model if isinstance(model, nn.Module) else TinyNet(**(model or {}))
    if compiled:
        module = torch.compile(module, backend="eager")  # type: ignore[assignment]
    settings = _config(stage, precision, accumulation)
    settings["zero_optimization"].update(_zero(stage, offload, param_offload, hpz), **(zero or {}))
    if isinstance(scheduler, str):
        settings["scheduler"] = _SCHEDULERS[scheduler]
    handed: Any = None
    if optimizer.startswith("config:"):
        settings["optimizer"] = _configured(optimizer.split(":", 1)[1], module)
    else:
        handed = _optimizer(optimizer, _param_groups(module, groups, OPTIMIZERS[optimizer][1]["lr"]))
    settings.update(config or {})
    made: Any = deepspeed.initialize(
        model=module, optimizer=handed, config=settings, model_parameters=_trained(module),
        lr_scheduler=scheduler if callable(scheduler) else None, dist_init_required=False,
        mpu=mpu,
    )  # fmt: skip
    return made[0]


def train(engine: Any, steps: int, seed: int = 0, first: int | None = None) -> list[float]:
    """Train and return this rank's mean loss for each step.

    Args:
        engine: from ``build_engine``.
        steps: optimizer steps.
        seed: of the data.
        first: number of the first step, which picks its data; the engine's own ``global_steps`` by default, so that
            a resumed run sees the data that the uninterrupted one saw.
    """
    rank, dtype = torch.distributed.get_rank(), _input_dtype(engine)
    start = engine.global_steps if first is None else first
    losses = []
    for step in range(start, start + steps):
        total = 0.0
        for micro in range(engine.gradient_accumulation_steps()):
            loss = engine(*batch(seed, step, micro, rank, _BATCH, dtype))
            engine.backward(loss)
            engine.step()
            total += float(loss.detach())
        losses.append(total / engine.gradient_accumulation_steps())
    return losses


def one_step_probe(engine: Any, seed: int = 0, tries: int = 30) -> list[str]:
    """Take one step with learning rate and weight decay 0 and name the parameters that moved; a healthy engine: none.

    Stale fp32 masters show here: the step writes them over weights that were right. The probe changes moments and
    counters, so it comes last in a scenario.

    Args:
        tries: fp16 skips steps until its loss scale has come down; it must take one within so many.
    """
    before = full_weights(engine)
    for group in _all_groups(engine):
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
        group["weight_decay"] = 0.0
    engine.lr_scheduler = None
    for _ in range(tries):
        skipped = engine.skipped_steps
        train(engine, 1, seed)
        if engine.skipped_steps == skipped:
            break
    else:
        raise AssertionError(f"the engine skipped {tries} steps, the probe has shown nothing")
    after = full_weights(engine)
    return [name for name, value in after.items() if not _same_bytes(value, before[name])]


def full_weights(engine: Any) -> dict[str, torch.Tensor]:
    """Name -> a copy of the whole parameter, gathered from all ranks under ZeRO-3. Collective."""
    named = list(engine.module.named_parameters())
    if engine.zero_optimization_stage() < 3:
        return {name: param.detach().clone() for name, param in named}
    whole = {}
    for name, param in named:
        with deepspeed.zero.GatheredParameters([param]):
            whole[name] = param.detach().clone()
    return whole


def _config(stage: int, precision: str, accumulation: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": _BATCH,
        "gradient_accumulation_steps": accumulation,
        "steps_per_print": 1_000_000,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        # DeepSpeed's CPUAdam would compile for minutes.
        "zero_force_ds_cpu_optimizer": False,
    }
    if precision == "bf16":
        settings["bf16"] = {"enabled": True}
    elif precision == "fp16":
        settings["fp16"] = {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 50}
    elif precision != "fp32":
        raise ValueError(f"precision is bf16, fp16 or fp32, not {precision!r}")
    return settings


def _zero(stage: int, offload: str | None, param_offload: str | None, hpz: int | None) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    if offload:
        entries["offload_optimizer"] = {"device": offload}
    if param_offload:
        entries["offload_param"] = {"device": param_offload}
    if hpz:
        entries["zero_hpz_partition_size"] = hpz
    if stage == 3:
        # By default every parameter of a tiny model is below the threshold and would never be partitioned.
        entries["stage3_param_persistence_threshold"] = 0
    return entries


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [param for param in module.parameters() if param.requires_grad]


def _param_groups(module: nn.Module, groups: int, lr: float) -> list[dict[str, Any]]:
    if groups == 1:
        return [{"params": _trained(module), "weight_decay": _WEIGHT_DECAY}]
    matrices = [param for param in _trained(module) if param.dim() > 1]
    vectors = [param for param in _trained(module) if param.dim() <= 1]
    return [
        {"params": matrices, "weight_decay": _WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0, "lr": lr / 2},
    ]


def _configured(kind: str, module: nn.Module) -> dict[str, Any]:
    if kind == "Muon":
        for param in module.parameters():
            param.use_muon = param.dim() > 1  # type: ignore[attr-defined]
        return {"type": kind, "params": {"lr": 3e-3, "momentum": 0.9}}
    if kind == "CPUAdam":  # what DeepSpeed makes of Adam for an offloaded optimizer
        return {"type": "AdamW", "params": {"lr": 3e-3}}
    return {"type": kind, "params": {"lr": 3e-3, "torch_adam": True}}


def _optimizer(name: str, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    kind, kwargs = OPTIMIZERS[name]
    return kind(groups, **kwargs)


def _all_groups(engine: Any) -> list[dict[str, Any]]:
    wrapper = engine.optimizer
    base = getattr(wrapper, "optimizer", wrapper)
    return [*wrapper.param_groups, *(base.param_groups if base is not wrapper else ())]


def _input_dtype(engine: Any) -> torch.dtype:
    return torch.bfloat16 if engine.bfloat16_enabled() else torch.float16 if engine.fp16_enabled() else torch.float32


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
