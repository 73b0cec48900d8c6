"""A run that is saved, resumed under the guard and trained on, next to the run that was never interrupted. Runs in ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

# Registers an optimizer that elastic checkpoints need.
import tests.live.scenarios  # noqa: F401
from tests.support.engines import build_engine, one_step_probe, train
from tests.support.inside import with_dspatch

STEPS = 3


def resume(folder: str, saved: dict[str, Any]) -> dict[str, Any]:
    """Train, save, train on; load into a fresh engine with other weights, train that on over the same data.

    Returns:
        ``skipped`` steps before the save, ``losses`` after it and ``resumed``: the same steps after the load; ``outcomes`` and
        ``findings`` of the report; ``moved``: parameters that one more step with lr 0 moves.
    """
    engine = build_engine(**saved)
    train(engine, STEPS)
    engine.save_checkpoint(folder, tag="a")
    skipped = engine.skipped_steps
    losses = train(engine, STEPS)
    dist.barrier()
    fresh = build_engine(**{**saved, "seed": 7})
    with with_dspatch() as dspatch:
        fresh.load_checkpoint(folder, tag="a")
        report = dspatch.last_report(fresh)
        resumed = train(fresh, STEPS, first=STEPS)
    return {
        "skipped": skipped,
        "losses": losses,
        "resumed": resumed,
        "outcomes": {name: str(one) for name, one in report.outcomes.items()},
        "findings": [one.to_dict() for one in report.findings],
        "moved": one_step_probe(fresh),
    }
