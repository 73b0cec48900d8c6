"""Gradients that lie in an engine in the middle of an accumulation window."""

from __future__ import annotations

from typing import Any

#: Where DeepSpeed's optimizers keep gradients between micro-batches: dicts by group, lists of flags.
_HOLDERS = ("averaged_gradients", "all_grad_tensors", "fp32_groups_has_gradients")


def accumulated(engine: Any) -> tuple[int, int]:
    """``(micro-batches accumulated, micro-batches for one step)``; the first is 0 where no gradient lies anywhere."""
    whole = int(engine.gradient_accumulation_steps())
    done = int(getattr(engine, "micro_steps", 0)) % max(whole, 1)
    return (done if done and _any_gradient(engine) else 0), whole


def _any_gradient(engine: Any) -> bool:
    held = (getattr(param, name, None) for param in engine.module.parameters() for name in ("grad", "grad_accum"))
    if any(one is not None for one in held):
        return True
    optimizer = engine.optimizer
    # With the optimizer on the CPU gradients are added up in buffers that stay; this counts what is in them.
    if getattr(optimizer, "cpu_offload", False) or getattr(optimizer, "offload_optimizer", False):
        return int(getattr(optimizer, "micro_step_id", 0)) > 0
    return any(_holds(getattr(optimizer, name, None)) for name in _HOLDERS)


def _holds(holder: Any) -> bool:
    if isinstance(holder, dict):
        return any(_holds(one) for one in holder.values())
    if isinstance(holder, list | tuple):
        return any(_holds(one) for one in holder)
    return holder is not None and holder is not False
