"""The learning rates that an engine's own scheduler asks for, where it stands.

DeepSpeed's schedulers restore nothing but ``last_batch_iteration`` (the ``load_state_dict`` of each class in
``deepspeed.runtime.lr_schedules``) and expect the rates to come back with the optimizer. torch's restore ``_last_lr``.
"""

from __future__ import annotations

from typing import Any


def asked_for(engine: Any) -> list[float] | None:
    """A rate for each param group; None where there is no scheduler, where it has not stepped, or where it cannot tell."""
    scheduler: Any = getattr(engine, "lr_scheduler", None)
    if not hasattr(getattr(scheduler, "optimizer", None), "param_groups"):
        return None
    if _of_deepspeed(scheduler):
        return [float(rate) for rate in scheduler.get_lr()] if scheduler.last_batch_iteration >= 0 else None
    if _of_torch(scheduler):
        return [float(rate) for rate in getattr(scheduler, "_last_lr", None) or ()] or None
    return None


def in_force(engine: Any) -> list[Any]:
    """The rate of each param group that the scheduler steps: a number, or a tensor with one element."""
    return [group["lr"] for group in engine.lr_scheduler.optimizer.param_groups]


def same(rate: Any, asked: float) -> bool:
    """Whether a rate is the one asked for, in the precision of the tensor that may hold it."""
    return float(rate) == (float(rate.new_tensor(asked)) if hasattr(rate, "new_tensor") else asked)


def put_in_force(engine: Any) -> None:
    """Set the rates that ``asked_for`` names; DeepSpeed's own schedulers set their momentum with them."""
    scheduler = engine.lr_scheduler
    if _of_deepspeed(scheduler):
        scheduler.step(scheduler.last_batch_iteration)
        return
    for group, rate in zip(scheduler.optimizer.param_groups, scheduler._last_lr, strict=True):
        if hasattr(group["lr"], "fill_"):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _of_deepspeed(scheduler: Any) -> bool:
    return hasattr(scheduler, "last_batch_iteration") and any(
        one.__module__ == "deepspeed.runtime.lr_schedules" for one in type(scheduler).__mro__
    )


def _of_torch(scheduler: Any) -> bool:
    return any(one.__module__ == "torch.optim.lr_scheduler" for one in type(scheduler).__mro__)
