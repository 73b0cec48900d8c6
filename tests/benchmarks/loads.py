"""Loads of a checkpoint that is large enough to measure, plain and under dspatch in turns. Runs inside ranks."""

from __future__ import annotations

import contextlib
import gc
import resource
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

from tests.support.engines import build_engine
from tests.support.inside import with_dspatch

_WIDTH, _LAYERS = 1280, 32


class Wide(nn.Module):
    """52 million parameters: 0.63 GB of masters and moments, 0.1 GB of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS))

    def forward(self, inputs: Any) -> Any:
        for layer in self.layers:
            inputs = layer(inputs) + inputs
        return inputs.float().square().mean()


def compare(folder: str, stage: int, levels: list[str], rounds: int) -> dict[str, Any]:
    """Load in turns: plain, then under each level of ``DSPATCH_VERIFY``; what is measured is the slowest rank.

    Returns:
        ``megabytes`` of shards; for ``plain`` and each level the ``seconds`` (median), ``best`` and the ``peak`` memory of
        rank 0 in MB.
    """
    import torch

    engine = build_engine(stage=stage, model=Wide(), seed=1)
    loss = engine(torch.ones(4, _WIDTH, dtype=torch.bfloat16))
    engine.backward(loss)
    engine.step()
    engine.save_checkpoint(folder, tag="a")
    dist.barrier()
    shards = sum(path.stat().st_size for path in Path(folder, "a").glob("*optim_states.pt"))
    taken: dict[str, list[float]] = {name: [] for name in ("plain", *levels)}
    peaks: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, times in taken.items():
            seconds, peak = _one(engine, folder, None if name == "plain" else name)
            if number:  # the first round warms the page cache
                times.append(seconds)
                peaks[name] = max(peaks.get(name, 0.0), peak)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)
    measured = {
        name: {"seconds": statistics.median(values), "best": min(values), "peak": peaks[name]}
        for name, values in taken.items()
    }
    return {"megabytes": shards / 1e6, **measured}


def _one(engine: Any, folder: str, level: str | None) -> tuple[float, float]:
    import torch

    gc.collect()
    _forget_peak()
    dist.barrier()
    if level is None:
        started = time.perf_counter()
        engine.load_checkpoint(folder, tag="a")
        took = time.perf_counter() - started
    else:
        with with_dspatch(verify=level):
            started = time.perf_counter()
            engine.load_checkpoint(folder, tag="a")
            took = time.perf_counter() - started
    slowest = torch.tensor(took)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest), _peak()


def _forget_peak() -> None:
    """Reset the high-water mark of resident memory; without the right to, it counts from the start of the process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak() -> float:
    """High-water mark of resident memory in MB."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1000
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
