"""Scenarios that run inside rank processes: the same state under any stage, precision and number of ranks."""

from __future__ import annotations

from typing import Any

import torch

from tests.diff.made import values
from tests.support.engines import build_engine, train


def save_state(
    folder: str, tag: str = "a", steps: int = 1, more: int = 0, seed: int = 0, data: int = 0, client: Any = None,
    **engine: Any,
) -> None:  # fmt: skip
    """Train ``steps``, put a state in place that depends on the names of parameters alone, save; then ``more`` steps
    and a second tag ``later``.

    Args:
        folder: the checkpoint folder.
        tag: of the first save.
        seed: of the state.
        data: seed of the training data.
        client: the client state of both saves.
        engine: keyword arguments of ``build_engine``.
    """
    made = build_engine(**engine)
    train(made, steps, data)
    put_state(made, seed)
    made.global_samples = 8 * steps  # as two ranks count them
    made.save_checkpoint(folder, tag=tag, client_state=client or {})
    if more:
        train(made, more, data)
        made.save_checkpoint(folder, tag="later", client_state=client or {})


def put_state(engine: Any, seed: int) -> None:
    """Masters, moments and weights as functions of ``seed`` and the parameter's name."""
    for name, param in engine.module.named_parameters():
        if not param.requires_grad:
            continue
        shape = param.ds_shape if hasattr(param, "ds_shape") else param.shape
        master = values(name, seed, shape)
        state = {"exp_avg": master * 0.01, "exp_avg_sq": (master * 0.01).square()}
        target, kept, first, last = _place(engine.optimizer, param)
        target.data.view(-1)[: last - first].copy_(master.reshape(-1)[first:last])
        for key, value in state.items():
            kept[key].view(-1)[: last - first].copy_(value.reshape(-1)[first:last])
        if not hasattr(param, "ds_tensor"):
            param.data.copy_(master)


def _place(wrapper: Any, param: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor], int, int]:
    """This rank's master and state of a parameter, from its first element here on, and which elements of it these are."""
    base = getattr(wrapper, "optimizer", wrapper)
    if hasattr(param, "ds_tensor"):
        group, start, _ = wrapper.grad_position[wrapper.get_param_id(param)]
        flat, size = wrapper.fp32_partitioned_groups_flat[group], param.partition_numel()
        first = min(torch.distributed.get_rank() * size, param.ds_numel)
        last = min(first + size, param.ds_numel)
    elif hasattr(param, "_hp_mapping"):
        if param._hp_mapping is None:
            return torch.empty(0), {"exp_avg": torch.empty(0), "exp_avg_sq": torch.empty(0)}, 0, 0
        groups = wrapper.bf16_groups if hasattr(wrapper, "bf16_groups") else wrapper.bit16_groups
        group = next(at for at, one in enumerate(groups) if any(other is param for other in one))
        flats = getattr(wrapper, "fp32_groups_flat_partition", None) or wrapper.single_partition_of_fp32_groups
        flat, start = flats[group], param._hp_mapping.hp_fragment_address.start
        first = param._hp_mapping.lp_fragment_address.start
        last = first + param._hp_mapping.lp_fragment_address.numel
    elif hasattr(wrapper, "fp32_groups"):
        pairs = ((a, b) for ours, theirs in zip(wrapper.fp16_groups, wrapper.fp32_groups, strict=True)
                 for a, b in zip(ours, theirs, strict=True))  # fmt: skip
        flat, start, first, last = next(b for a, b in pairs if a is param), 0, 0, param.numel()
    else:
        flat, start, first, last = param, 0, 0, param.numel()
    state = {key: value.view(-1)[start:] for key, value in base.state[flat].items() if key != "step"}
    return flat.detach().view(-1)[start:], state, first, last


def masters_that_differ(one: str, other: str) -> list[str]:
    """What DeepSpeed's own script for fp32 weights says of two checkpoint folders (tag ``a``), parameter by parameter."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    found = [get_fp32_state_dict_from_zero_checkpoint(folder, tag="a") for folder in (one, other)]
    return [name for name in found[0] if not torch.equal(found[0][name], found[1][name])]
