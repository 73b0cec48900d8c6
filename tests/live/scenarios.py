"""What runs on the ranks: save an engine, load it into another one, read and compare."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dspatch import live
from dspatch.checkpoint import layout
from dspatch.checkpoint.unpickle import Tree, read_tree
from dspatch.verdict.compare import Comparison, compare
from tests.live.kinds import ALL
from tests.support.engines import OPTIMIZERS, build_engine, train
from tests.support.models import INPUTS, OUTPUTS, Lion

Kwargs = Mapping[str, Any]


class CountingLion(Lion):
    """Keeps ``step`` in its groups, without which DeepSpeed cannot load its own elastic checkpoints."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1


OPTIMIZERS["counting_lion"] = (CountingLion, {"lr": 1e-3})


def files_of(engine: Any, folder: str, tag: str, rank: int | None = None) -> dict[str, Tree]:
    """Trees of a rank's own files."""
    here = torch.distributed.get_rank() if rank is None else rank
    stage = engine.zero_optimization_stage()
    named = {
        "model": layout.model_file(stage, 0, here if stage == 3 else 0),
        "shard": layout.shard_file(here, 0, bool(engine.bfloat16_enabled())),
    }
    paths = {role: os.path.join(folder, tag, name) for role, name in named.items()}
    return {role: read_tree(path) for role, path in paths.items() if os.path.exists(path)}


def measured(engine: Any, folder: str, tag: str, level: str = "full", asked: frozenset[str] = ALL) -> Comparison:
    """Read an engine and compare it with a tag."""
    return compare(live.read(engine), files_of(engine, folder, tag), level=level, asked=asked, threads=2)


def described(comparison: Comparison, engine: Any) -> dict[str, Any]:
    """Plain data about a comparison; ``chosen`` is the parameter that faults of one parameter take."""
    return {
        "chosen": [_chosen(engine)[1].name] if any(one.fragments for one in live.read(engine).states) else [],
        "outcomes": {name: str(one) for name, one in comparison.outcomes.items()},
        "findings": [one.to_dict() for one in comparison.findings],
        "bytes": comparison.bytes_compared,
        "family": live.read(engine).family,
    }


def save(folder: str, steps: int, **kwargs: Any) -> None:
    """Train and save under the tag ``first``, then train one more step and save ``second``."""
    engine = build_engine(**kwargs)
    train(engine, steps)
    engine.save_checkpoint(folder, tag="first")
    train(engine, 1)
    engine.save_checkpoint(folder, tag="second")


def load(
    folder: str,
    saved: Kwargs,
    loaded: Kwargs | None = None,
    steps: int = 3,
    level: str = "full",
    fault: str = "",
    load_kwargs: Kwargs | None = None,
    asked: frozenset[str] = ALL,
    last: bool = False,
) -> dict[str, Any]:
    """Save with one engine, load ``first`` into another one, apply a fault, measure.

    Args:
        folder: shared by the ranks.
        saved: of ``build_engine`` for the run that saves.
        loaded: what is different for the run that loads.
        steps: before the save.
        level: of ``compare``.
        fault: name of a function of this module, called with the engine and the folder before the measurement.
        load_kwargs: of ``load_checkpoint``.
        asked: of ``compare``.
        last: let ``latest`` name ``first``, which decides where some releases take ZeRO-3 weights from.
    """
    save(folder, steps, **saved)
    if last and torch.distributed.get_rank() == 0:
        Path(folder, "latest").write_text("first")
    torch.distributed.barrier()
    engine = build_engine(**{**saved, "seed": 7, **(loaded or {})})
    engine.load_checkpoint(folder, tag="first", **(load_kwargs or {}))
    if fault:
        FAULTS[fault](engine, folder)
    result = described(measured(engine, folder, "first", level, asked), engine)
    torch.distributed.barrier()
    return result


def _base(engine: Any) -> Any:
    return getattr(engine.optimizer, "optimizer", engine.optimizer)


def _flat_masters(engine: Any) -> list[torch.Tensor]:
    for name in (
        "fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition",
        "fp32_groups_flat",
    ):  # fmt: skip
        found = getattr(engine.optimizer, name, None)
        if found is not None:
            return list(found)
    groups = getattr(engine.optimizer, "fp32_groups", None) or [group["params"] for group in _base(engine).param_groups]
    return [one for group in groups for one in group]


def _chosen(engine: Any) -> tuple[live.LiveState, live.Fragment]:
    """The state with the most parameters in it, and a parameter in its middle."""
    state = max(live.read(engine).states, key=lambda one: (len(one.fragments), one.numel))
    return state, state.fragments[len(state.fragments) // 2]


def _zero_one_moment(engine: Any, folder: str) -> None:
    state, one = _chosen(engine)
    state.entries["exp_avg"].data.reshape(-1)[one.start : one.start + one.numel] = 0


def _zero_moments(engine: Any, folder: str) -> None:
    for state in live.read(engine).states:
        for value in state.entries.values():
            if isinstance(value, torch.Tensor) and value.dim():
                value.data.zero_()


def _no_moments(engine: Any, folder: str) -> None:
    _base(engine).state.clear()


def _flip_a_bit(engine: Any, folder: str) -> None:
    state, one = _chosen(engine)
    word = state.entries["exp_avg_sq"].data.reshape(-1).view(torch.int32)
    word[one.start] = word[one.start] ^ 1


def _other_momentum(engine: Any, folder: str) -> None:
    states = [one for one in live.read(engine).states if "momentum_buffer" in one.entries and one.fragments]
    states[0].entries["momentum_buffer"].data.reshape(-1)[0] += 1.0


def _step_off(engine: Any, folder: str) -> None:
    for entries in _base(engine).state.values():
        entries["step"] = entries["step"] + 1


def _lr_off(engine: Any, folder: str) -> None:
    _base(engine).param_groups[-1]["lr"] *= 1.5


def _stale_masters(engine: Any, folder: str) -> None:
    for master in _flat_masters(engine):
        master.data.add_(1.0)


def _masters_from_weights(engine: Any, folder: str) -> None:
    engine.optimizer.refresh_fp32_params()


def _other_weight(engine: Any, folder: str) -> None:
    param = dict(engine.module.named_parameters())["middle.1.weight"]
    target = getattr(param, "ds_tensor", param.data)
    target.data.reshape(-1)[3] += 1.0


def _scale_off(engine: Any, folder: str) -> None:
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    holder = scaler if scaler is not None else getattr(engine.optimizer, "loss_scale_config", engine.optimizer)
    holder.cur_scale *= 2


def _counter_off(engine: Any, folder: str) -> None:
    engine.global_steps += 1


def _other_tag(engine: Any, folder: str) -> None:
    engine.load_checkpoint(folder, tag="second")


def _other_rank(engine: Any, folder: str) -> None:
    """Measure against the shards of the other rank, as when two files were exchanged and nobody looked."""
    here, there = (os.path.join(folder, "first", layout.shard_file(rank, 0, bool(engine.bfloat16_enabled())))
                   for rank in (0, 1))  # fmt: skip
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        os.rename(here, here + ".moved")
        os.rename(there, here)
        os.rename(here + ".moved", there)
    torch.distributed.barrier()


def _scheduler_off(engine: Any, folder: str) -> None:
    engine.lr_scheduler.last_batch_iteration += 1


def _unknown_optimizer(engine: Any, folder: str) -> None:
    class Stranger:
        param_groups = engine.optimizer.param_groups

    engine.optimizer = Stranger()


FAULTS: dict[str, Callable[[Any, str], None]] = {
    function.__name__[1:]: function
    for function in (
        _zero_one_moment, _zero_moments, _no_moments, _flip_a_bit, _other_momentum, _step_off, _lr_off, _stale_masters,
        _masters_from_weights, _other_weight, _scale_off, _counter_off, _other_tag, _other_rank, _scheduler_off,
        _unknown_optimizer,
    )
}  # fmt: skip


def roll_back(folder: str, saved: Kwargs) -> dict[str, Any]:
    """Train on after a save, load it again, measure."""
    engine = build_engine(**saved)
    train(engine, 2)
    engine.save_checkpoint(folder, tag="first")
    train(engine, 2)
    engine.load_checkpoint(folder, tag="first")
    return described(measured(engine, folder, "first"), engine)


class ThreeLayers(nn.Module):
    """Two square layers of the same shape, registered in either order; the same function with the same weights."""

    def __init__(self, swapped: bool) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, 6, bias=False)
        for name in ("third", "second") if swapped else ("second", "third"):
            self.add_module(name, nn.Linear(6, 6, bias=False))
        self.last = nn.Linear(6, OUTPUTS)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.second(torch.tanh(self.first(inputs))))
        return (self.last(torch.tanh(self.third(hidden))).float() - targets).square().mean()


def reorder(folder: str, **kwargs: Any) -> dict[str, Any]:
    """Save a model, load it into one whose layers were registered in another order."""
    engine = build_engine(**{**kwargs, "model": ThreeLayers(swapped=False)})
    train(engine, 2)
    engine.save_checkpoint(folder, tag="first")
    engine = build_engine(**{**kwargs, "model": ThreeLayers(swapped=True)})
    engine.load_checkpoint(folder, tag="first")
    return described(measured(engine, folder, "first"), engine)
