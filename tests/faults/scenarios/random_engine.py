"""A random engine, saved, harmed in one random place or not at all, and loaded under the guard. Runs inside ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dspatch import live
from tests.faults.scenarios.below import behind_the_optimizer
from tests.support import damage
from tests.support.engines import build_engine, train
from tests.support.inside import with_dspatch


def load(folder: str, saved: dict[str, Any], steps: int, where: str, place: float, bit: int) -> dict[str, Any]:
    """Save after ``steps``; load into a fresh engine.

    Args:
        where: ``""``, ``"file"`` (a bit of a shard, or of the model file where there are none) or ``"live"`` (a bit of
            the optimizer's state on one rank, as soon as DeepSpeed has restored it).
        place: 0 to 1: which tensor, and where in it.
        bit: 0 to 7.

    Returns:
        ``error``: class name or None; ``lost``: components that are not restored; ``harmed``: whether this load was.
    """
    engine = build_engine(seed=1, **saved)
    train(engine, steps)
    engine.save_checkpoint(folder, tag="a")
    dist.barrier()
    if where == "file" and dist.get_rank() == 0:
        files = sorted(Path(folder, "a").glob("*optim_states.pt")) or sorted(Path(folder, "a").glob("*model_states.pt"))
        damage.flip_bit(files[int(place * (len(files) - 1e-9))], -1, position=place, bit=bit)
    dist.barrier()
    fresh = build_engine(seed=2, **saved)
    harmed: list[bool] = []
    if where == "live":
        behind_the_optimizer(fresh, lambda: harmed.append(_flip(fresh, place, bit)))
    error, text = None, ""
    with with_dspatch() as dspatch:
        try:
            fresh.load_checkpoint(folder)
        except Exception as raised:
            error, text = type(raised).__name__, str(raised)
        report = dspatch.last_report(fresh)
    lost = [] if report is None else sorted(name for name, one in report.outcomes.items() if one.word != "restored")
    return {"error": error, "text": text, "lost": lost, "harmed": where == "file" or any(harmed)}


def _flip(engine: Any, place: float, bit: int) -> bool:
    """Flip one bit of one moment that belongs to a parameter, on rank 0; False when this rank holds none."""
    if dist.get_rank() != 0:
        return False
    tensors = [
        (value, state.fragments)
        for state in live.read(engine).states
        for value in state.entries.values()
        if isinstance(value, torch.Tensor) and value.numel() == state.size and state.fragments
    ]
    if not tensors:
        return False
    tensor, fragments = tensors[int(place * (len(tensors) - 1e-9))]
    one = fragments[int(place * (len(fragments) - 1e-9))]
    bytes_of = tensor.data.reshape(-1)[one.start : one.start + one.numel].view(torch.uint8)
    bytes_of[int(place * (bytes_of.numel() - 1))] ^= 1 << bit
    return True
