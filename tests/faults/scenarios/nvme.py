"""ZeRO-3 with its optimizer on NVMe, where a plain folder plays the disk. Runs inside ranks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch.distributed as dist
from deepspeed.ops.op_builder import AsyncIOBuilder
from deepspeed.runtime.zero.partition_parameters import Init

from tests.support.engines import build_engine, train
from tests.support.inside import dspatch_or_not

#: Two of three sub-groups are too small to be swapped; the large one has 0.4 million elements on each of two ranks.
_MODEL = {"width": 640, "depth": 2}


def can_run() -> str:
    """Empty, or why NVMe offload cannot run here."""
    return "" if AsyncIOBuilder().is_compatible(verbose=False) else "DeepSpeed's async_io needs libaio with its headers"


def load(folder: str, into: str, settings: dict[str, Any] | None, spoil: str = "", **arguments: Any) -> dict[str, Any]:
    """Train, save, and load the save.

    Args:
        folder: shared by the ranks.
        into: ``same``: the engine that saved; ``trained``: the same after one more step; ``fresh``: a new one as a new
            process would build it; ``second``: a new one of this process.
        settings: of dspatch; None: without it.
        spoil: ``copy``: DeepSpeed's copy of the swap files leaves the moments out; ``gone``: the tag has lost its swap files.
        arguments: of ``load_checkpoint``.
    """
    Init.param_id = 0
    engine = _engine(folder, "first", seed=1)
    train(engine, 3)
    engine.save_checkpoint(folder, tag="a")
    dist.barrier()
    if into == "trained":
        train(engine, 1)
    elif into in ("fresh", "second"):
        Init.param_id = 0 if into == "fresh" else Init.param_id
        engine = _engine(folder, "second", seed=2)
    if spoil == "gone" and dist.get_rank() == 0:
        shutil.rmtree(os.path.join(folder, "a", "offloaded_tensors"))
    dist.barrier()
    error: Exception | None = None
    with dspatch_or_not(settings) as dspatch:
        try:
            with _copying_no_moments() if spoil == "copy" else nullcontext():
                engine.load_checkpoint(folder, tag="a", **arguments)
        except Exception as raised:
            error = raised
        report = dspatch.last_report(engine) if dspatch is not None else None
    found = [] if report is None else [one for one in report.to_dict()["findings"]]
    return {
        "error": None if error is None else (type(error).__name__, str(error)),
        "outcomes": {} if report is None else {name: one.word for name, one in report.outcomes.items()},
        "findings": found,
        "bytes": 0 if report is None else report.bytes_compared,
        "steps_of_moments": [float(state["step"]) for state in engine.optimizer.optimizer.state.values()],
    }


def _engine(folder: str, disk: str, seed: int) -> Any:
    device = {"device": "nvme", "nvme_path": os.path.join(folder, disk), "pin_memory": False, "buffer_count": 5}
    return build_engine(
        stage=3, groups=2, scheduler="warmup", seed=seed, model=_MODEL,
        zero={"offload_optimizer": device, "sub_group_size": 300_000},
    )  # fmt: skip


@contextmanager
def _copying_no_moments() -> Iterator[None]:
    original: Callable[..., Any] = shutil.copytree
    leaving_out = shutil.ignore_patterns("exp_avg*")
    with mock.patch.object(shutil, "copytree", lambda *args, **kw: original(*args, **{**kw, "ignore": leaving_out})):
        yield
