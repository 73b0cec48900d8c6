"""A learning-rate scheduler that steps the engine's optimizer without the engine knowing it.

DeepSpeed saves and restores only ``engine.lr_scheduler``. A torch scheduler leaves a mark on the optimizer that it was
made for (``LRScheduler.__init__`` replaces ``optimizer.step``), so that its presence can be told.
"""

from __future__ import annotations

import gc
from typing import Any

from dspatch.live.attributes import base_optimizer


def find(engine: Any) -> Any:
    """The scheduler outside, None if there is none. Looks through all objects, but only where the mark is."""
    base = base_optimizer(engine)
    if getattr(engine, "lr_scheduler", None) is not None or base is None:
        return None
    if not hasattr(getattr(base, "step", None), "_wrapped_by_lr_sched"):
        return None
    for one in gc.get_objects():
        if getattr(type(one), "get_last_lr", None) is not None and getattr(one, "optimizer", None) is base:
            return one
    return None


def rates(scheduler: Any) -> tuple[list[float], list[float]]:
    """``(what the scheduler set last, what the optimizer holds now)``, a learning rate for each param group."""
    last = [float(rate) for rate in getattr(scheduler, "_last_lr", ())]
    return last, [float(group["lr"]) for group in scheduler.optimizer.param_groups]
