"""Runs with a schedule, resumed without their optimizer, or by an engine that has none. Runs inside ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from tests.faults.scenarios.models import build_engine
from tests.support.engines import train
from tests.support.inside import dspatch_or_not

STEPS = 4


def rates(
    folder: str, engine: dict[str, Any], settings: dict[str, Any] | None, arguments: dict[str, Any], steps: int = STEPS
) -> dict[str, Any]:
    """Save after some steps, load with ``arguments``, and take one step in both runs.

    Returns:
        ``saved`` and ``loaded``: learning rate and betas of each group, when the checkpoint was written and behind the load;
        ``next`` and ``resumed``: the same one step later; ``error``: text or None.
    """
    made = build_engine(seed=1, **engine)
    train(made, steps)
    made.save_checkpoint(folder, tag="a")
    found: dict[str, Any] = {"saved": _rates(made), "error": None}
    train(made, 1)
    found["next"] = _rates(made)
    dist.barrier()
    fresh = build_engine(seed=2, **engine)
    with dspatch_or_not(settings):
        try:
            fresh.load_checkpoint(folder, **arguments)
        except RuntimeError as raised:
            found["error"] = str(raised)
        found["loaded"] = _rates(fresh)
        train(fresh, 1, first=steps)
    found["resumed"] = _rates(fresh)
    return found


def _rates(engine: Any) -> list[tuple[float, Any]]:
    base = getattr(engine.optimizer, "optimizer", engine.optimizer)
    return [(float(group["lr"]), group.get("betas")) for group in base.param_groups]


def left_over(folder: str, settings: dict[str, Any] | None, arguments: dict[str, Any]) -> dict[str, Any]:
    """Save with a scheduler, load into an engine without one, as a trainer does that steps its own.

    Returns:
        ``saved``: the scheduler's state; ``client``: what the load returned of it; ``mine``: the caller's own entry.
    """
    engine = build_engine(seed=1, stage=2, scheduler="LambdaLR")
    train(engine, STEPS)
    engine.save_checkpoint(folder, tag="a", client_state={"mine": 7})
    dist.barrier()
    fresh = build_engine(seed=2, stage=2)
    with dspatch_or_not(settings):
        _, client = fresh.load_checkpoint(folder, **arguments)
    return {"saved": engine.lr_scheduler.state_dict(), "client": client.get("lr_scheduler"), "mine": client["mine"]}
