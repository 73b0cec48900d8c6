"""Healthy loads that look like faults. Runs inside ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from tests.faults.scenarios.loading import load
from tests.support import damage
from tests.support.engines import build_engine


def load_after(folder: str, engine: dict[str, Any], change: str) -> dict[str, Any]:
    """``load`` under the guard, after the files were changed in a way that changes no state."""
    if dist.get_rank() == 0:
        for path in Path(folder, "a").glob("*.pt"):
            damage.rewrite(path, _CHANGES[change])
    dist.barrier()
    return load(folder, engine, settings={}, probe=True)


def load_lazily(folder: str, engine: dict[str, Any]) -> dict[str, Any]:
    """``load`` under the guard, where DeepSpeed gets memory-mapped tensors that it may keep."""
    plain: Callable[..., Any] = torch.load

    def mapped(path: Any, *args: Any, **kwargs: Any) -> Any:
        return plain(path, *args, **{**kwargs, "mmap": True})

    with mock.patch.object(torch, "load", mapped):
        return load(folder, engine, settings={}, probe=True)


def _other_torch(tree: dict[str, Any]) -> None:
    """Hyperparameters as a torch wrote them that lacks some of today's and has others."""
    for group in _groups(tree):
        group.pop("decoupled_weight_decay", None)
        group.pop("foreach", None)
        group["initial_lr"] = 0.5
        group["of_another_torch"] = True


def _groups(tree: dict[str, Any]) -> list[dict[str, Any]]:
    outer = tree.get("optimizer_state_dict", {})
    inner = outer.get("base_optimizer_state", outer.get("optimizer_state_dict", {}))
    groups: list[dict[str, Any]] = inner.get("param_groups", [])
    return groups


_CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {"other torch": _other_torch}


def load_with_adapters(folder: str, stage: int) -> dict[str, Any]:
    """A base model's checkpoint into a model with adapters, which the checkpoint cannot hold."""
    base = {"frozen": True}
    made = build_engine(stage=stage, seed=1, model=base)
    made.save_checkpoint(folder, tag="a")
    dist.barrier()
    arguments = {"load_module_strict": False, "load_optimizer_states": False, "load_lr_scheduler_states": False}
    return load(folder, {"stage": stage, "model": {**base, "unused": True}}, arguments=arguments, settings={}, probe=True)
