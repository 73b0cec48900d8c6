"""Models that single faults need, by name, so that a table can hold them. Runs inside ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.live.scenarios import CountingLion, ThreeLayers
from tests.support import engines
from tests.support.models import TinyNet


class Wrapped(nn.Module):
    """``TinyNet`` under a prefix, as torch.compile and other wrappers make one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = TinyNet()

    def forward(self, *args: Any) -> Any:
        return self.inner(*args)


class MixedLion(CountingLion):
    """Keeps one state more for vectors, which have no weight decay here; ZeRO steps one group at a time."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None and not group["weight_decay"]:
                    self.state[param].setdefault("second", torch.zeros_like(param)).add_(param.grad.abs())


engines.OPTIMIZERS["mixed_lion"] = (MixedLion, {"lr": 1e-3})

MODELS: dict[str, Callable[[], nn.Module]] = {
    "three layers": lambda: ThreeLayers(swapped=False),
    "three layers, two of them swapped": lambda: ThreeLayers(swapped=True),
    "wrapped": Wrapped,
}


def _of_tensors(base: Any) -> Any:
    """Rates in tensors, as optimizers want them that are captured in graphs."""
    for group in base.param_groups:
        group["lr"] = torch.tensor(group["lr"])
    return torch.optim.lr_scheduler.LambdaLR(base, lambda step: 1 / (1 + step))


#: Schedulers that a configuration cannot name, and those that ``engines`` has no use for.
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda base: torch.optim.lr_scheduler.LambdaLR(base, lambda step: 1 / (1 + step)),
    "OneCycleLR": lambda base: torch.optim.lr_scheduler.OneCycleLR(base, max_lr=0.01, total_steps=40),
    "LambdaLR of tensors": _of_tensors,
    "SequentialLR": lambda base: torch.optim.lr_scheduler.SequentialLR(
        base,
        [torch.optim.lr_scheduler.LinearLR(base, total_iters=2), torch.optim.lr_scheduler.ExponentialLR(base, 0.9)],
        milestones=[2],
    ),
}
CONFIGURED: dict[str, dict[str, Any]] = {
    "LRRangeTest": {"lr_range_test_min_lr": 0.0001, "lr_range_test_step_size": 2, "lr_range_test_step_rate": 3},
    "OneCycle": {"cycle_min_lr": 0.0001, "cycle_max_lr": 0.01, "cycle_first_step_size": 7, "cycle_min_mom": 0.8,
                 "cycle_max_mom": 0.95},
    "WarmupLR": {"warmup_min_lr": 0.0, "warmup_max_lr": 0.01, "warmup_num_steps": 10},
    "WarmupDecayLR": {"warmup_max_lr": 0.01, "warmup_num_steps": 2, "total_num_steps": 40},
    "WarmupCosineLR": {"warmup_num_steps": 2, "total_num_steps": 40},
}  # fmt: skip


def build_engine(seed: int = 0, model: Any = None, scheduler: str = "", **kwargs: Any) -> Any:
    """``engines.build_engine``, with a model and a scheduler of this file where they are named."""
    if isinstance(model, str):
        torch.manual_seed(seed)
        model = MODELS[model]()
    handed: Any = SCHEDULERS.get(scheduler, scheduler or None)
    if scheduler in CONFIGURED:
        handed = None
        entry = {"type": scheduler, "params": CONFIGURED[scheduler]}
        kwargs["config"] = {**(kwargs.get("config") or {}), "scheduler": entry}
    return engines.build_engine(seed=seed, model=model, scheduler=handed, **kwargs)


def rates(engine: Any) -> list[float]:
    """The learning rate of each param group."""
    base = getattr(engine.optimizer, "optimizer", engine.optimizer)
    return [float(group["lr"]) for group in getattr(base, "param_groups", ())]
