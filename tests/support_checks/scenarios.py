"""Scenario functions that show that pool, engines, snapshots and damage do what they say. Run inside ranks."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from tests.support.engines import build_engine, one_step_probe, train
from tests.support.inside import rank
from tests.support.state import differences, moments_in_use, same, snapshot


def save_load(folder: str, tag: str | int, steps: int = 4, **engine_arguments: Any) -> dict[str, Any]:
    """Train, save, train on; then load into a differently seeded engine and train that on."""
    engine = build_engine(seed=1, **engine_arguments)
    train(engine, steps)
    engine.save_checkpoint(folder, tag=tag)
    saved = snapshot(engine)
    rest = train(engine, 3)
    other = build_engine(seed=2, **engine_arguments)
    train(other, 1, seed=9)
    before = snapshot(other)
    path, _ = other.load_checkpoint(folder, tag=tag)
    loaded = snapshot(other)
    return {
        "path": path,
        "keys": list(saved),
        "moved": differences(saved, before),
        "different": [name for name in differences(saved, loaded) if name != "counter/micro_steps"],
        "rest": rest,
        "resumed": train(other, 3, first=steps),
        "probe": one_step_probe(other),
    }


def stale_masters(stage: int) -> list[str]:
    """Write masters behind DeepSpeed's back; the probe must name parameters."""
    engine = build_engine(stage, precision="bf16")
    train(engine, 2)
    wrapper = engine.optimizer
    flats = wrapper.fp32_partitioned_groups_flat if stage == 3 else wrapper.single_partition_of_fp32_groups
    for flat in flats:
        flat.data.add_(1.0)
    return one_step_probe(engine)


def snapshot_is_a_copy() -> bool:
    """Training must not change a snapshot that was taken before."""
    engine = build_engine(1)
    train(engine, 1)
    first, twin = snapshot(engine), snapshot(engine)
    train(engine, 1)
    later = snapshot(engine)
    return not differences(first, twin) and bool(differences(first, later)) and moments_in_use(first) > 0


def bytes_decide() -> tuple[bool, bool]:
    """NaN equals itself; 0.0 and -0.0 differ."""
    nan = torch.tensor([float("nan")])
    return same(nan, nan.clone()), same(torch.tensor([0.0]), torch.tensor([-0.0]))


def sum_of_ranks(plus: int = 0) -> int:
    """A collective that needs every rank."""
    total = torch.tensor([rank() + plus])
    dist.all_reduce(total)
    return int(total)


def one_rank_raises() -> None:
    """Rank 1 raises, the others wait for it in a collective."""
    if rank() == 1:
        raise ValueError("rank 1 has had enough")
    sum_of_ranks()


def all_raise() -> None:
    """Every rank raises the same."""
    raise LookupError("nothing here")


def crash() -> None:
    """Rank 0 ends without a word."""
    if rank() == 0:
        os._exit(7)
    sum_of_ranks()


def out_of_step() -> None:
    """Rank 0 leaves a message behind that nobody expects."""
    if rank() == 0:
        dist.all_gather([torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())],
                        torch.tensor([-1], dtype=torch.int64), async_op=True)  # fmt: skip


def hang() -> None:
    """Every rank sleeps far past any limit."""
    time.sleep(600)


def says(text: str) -> tuple[str, bool, str | None]:
    """Logs as dspatch does; tells how the process was set up."""
    logging.getLogger("dspatch.verdict").warning(text)
    logging.getLogger("elsewhere").warning("not ours")
    return os.environ["TORCH_EXTENSIONS_DIR"], "dspatch" in sys.modules, os.environ.get("DSPATCH_MODE")


def unpicklable() -> object:
    """A value that cannot travel."""
    return lambda: None
