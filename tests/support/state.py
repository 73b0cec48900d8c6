"""Every byte of an engine's training state as plain data, to compare an engine with itself or with another one.

Independent of ``dspatch.live`` on purpose: what checks dspatch must not share its mistakes.
"""

from __future__ import annotations

import math
from typing import Any

import torch

Snapshot = dict[str, Any]

#: Prefix of bytes that belong to no parameter. DeepSpeed leaves them uninitialised at times.
PADDING = "padding/"

_COUNTERS = ("global_steps", "global_samples", "skipped_steps", "micro_steps")


def snapshot(engine: Any) -> Snapshot:
    """Copy this rank's state. Keys read ``weights/NAME``, ``masters/GROUP``, ``moments/GROUP/exp_avg``, ``group/0/lr``.

    Tensors keep their dtype and are copies on CPU; other values stay as they are. What belongs to no parameter is under
    ``padding/``.
    """
    facts: Snapshot = {}
    _weights(engine, facts)
    wrapper = engine.optimizer
    if wrapper is not None:
        _optimizer(wrapper, facts)
        scaler = getattr(wrapper, "loss_scaler", None)
        numbers = getattr(scaler, "__dict__", {}).items()
        facts |= {f"scaler/{name}": value for name, value in numbers if isinstance(value, bool | int | float)}
    if engine.lr_scheduler is not None:
        facts["lr_scheduler"] = _frozen(engine.lr_scheduler.state_dict())
    facts |= {f"counter/{name}": getattr(engine, name) for name in _COUNTERS}
    return facts


def differences(before: Snapshot, after: Snapshot, ignore: tuple[str, ...] = (PADDING,)) -> list[str]:
    """Keys whose values differ, byte for byte (NaN equals itself, -0.0 does not equal 0.0), or that one side lacks.

    Args:
        ignore: prefixes of keys that do not count.
    """
    names = [name for name in {**before, **after} if not name.startswith(ignore)] if ignore else [*{**before, **after}]
    return [name for name in names if name not in before or name not in after or not same(before[name], after[name])]


def same(one: Any, other: Any) -> bool:
    """Equal type and bytes."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
        )
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and bool(one == other)


def moments_in_use(facts: Snapshot) -> int:
    """Elements of optimizer tensors that are not 0. An optimizer that has not stepped yet may have no tensor at all."""
    return sum(int(value.count_nonzero()) for name, value in facts.items() if name.startswith("moments/"))


def _weights(engine: Any, facts: Snapshot) -> None:
    for name, param in engine.module.named_parameters():
        shard = getattr(param, "ds_tensor", None)
        facts[f"weights/{name}"] = _copy(param if shard is None else shard)
    for name, buffer in engine.module.named_buffers():
        facts[f"buffers/{name}"] = _copy(buffer)


def _optimizer(wrapper: Any, facts: Snapshot) -> None:
    base = getattr(wrapper, "optimizer", wrapper)
    flat = getattr(wrapper, "fp32_partitioned_groups_flat", None)  # ZeRO-3 empties the groups of its base optimizer
    tensors = flat if flat is not None else [param for group in base.param_groups for param in group["params"]]
    for index, tensor in enumerate(tensors):
        belongs = _belongs(wrapper, index, tensor)
        _put(facts, f"masters/{index}", tensor, belongs)
        for kind, value in base.state.get(tensor, {}).items():
            if isinstance(value, torch.Tensor) and value.numel() == tensor.numel() and value.dim():
                _put(facts, f"moments/{index}/{kind}", value, belongs)
            else:
                facts[f"optimizer_step/{index}/{kind}"] = _frozen(value)
    for number, group in enumerate(base.param_groups):
        facts |= {f"group/{number}/{name}": _frozen(value) for name, value in group.items() if name != "params"}


def _belongs(wrapper: Any, index: int, tensor: torch.Tensor) -> torch.Tensor | None:
    """Which elements of a flat partition are a parameter's; None: all of them."""
    if getattr(wrapper, "fp32_partitioned_groups_flat", None) is not None:
        parts = [_shard_mask(param) for param in wrapper.fp16_groups[index]]
        return torch.cat(parts)
    paddings = getattr(wrapper, "groups_padding", None) or getattr(wrapper, "group_paddings", None)
    if not paddings:
        return None
    mask = torch.ones(tensor.numel(), dtype=torch.bool)
    mask[tensor.numel() - paddings[index] :] = False
    return mask


def _shard_mask(param: Any) -> torch.Tensor:
    size = param.partition_numel()
    rank = torch.distributed.get_rank(param.ds_process_group)
    valid = max(0, min(size, param.ds_numel - rank * size))
    return torch.arange(size) < valid


def _put(facts: Snapshot, name: str, tensor: torch.Tensor, belongs: torch.Tensor | None) -> None:
    copy = _copy(tensor)
    if belongs is None:
        facts[name] = copy
        return
    facts[name] = copy.reshape(-1)[belongs]
    facts[PADDING + name] = copy.reshape(-1)[~belongs]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _frozen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _copy(value)
    if isinstance(value, dict):
        return {name: _frozen(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_frozen(one) for one in value)
    return value
