"""Engines whose state dspatch does not measure yet, saved and loaded under the guard. Runs inside ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.checkpoint.saving import experts_engine
from tests.offline.saving import pipeline_engine
from tests.support.engines import train
from tests.support.inside import with_dspatch


def load(folder: str, kind: str) -> dict[str, Any]:
    """Save one engine, load it into another one with other weights.

    Returns:
        ``outcomes`` of the report, and whether ``weights`` are the saved ones.
    """
    engine = _made(kind, 0)
    if kind == "experts":
        train(engine, 2)
    engine.save_checkpoint(folder, tag="a")
    dist.barrier()
    fresh = _made(kind, 1)
    with with_dspatch() as dspatch:
        path, _ = fresh.load_checkpoint(folder, tag="a")
        report = dspatch.last_report(fresh)
    one, other = (list(made.module.parameters()) for made in (engine, fresh))
    return {
        "path": bool(path),
        "outcomes": {} if report is None else {name: str(said) for name, said in report.outcomes.items()},
        "weights": all(torch.equal(a, b) for a, b in zip(one, other, strict=True)),
    }


def _made(kind: str, seed: int) -> Any:
    if kind == "experts":
        return experts_engine(2, seed=seed)
    if kind == "pipeline":
        return pipeline_engine(2, seed=seed)[0]
    import deepspeed

    torch.manual_seed(seed)
    config = {"train_micro_batch_size_per_gpu": 4, "steps_per_print": 10**6}
    return deepspeed.initialize(model=torch.nn.Linear(7, 5), config=config, dist_init_required=False)[0]
