"""Saves that a process of their own writes, and loads right behind them. Runs inside ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.faults.scenarios.models import build_engine
from tests.support.engines import train
from tests.support.inside import dspatch_or_not

WRITER = {"checkpoint": {"writer": {"type": "python", "decoupled": True, "data_parallel": "replica", "io_buffer_size": 1 << 20}}}


def load_behind(folder: str, settings: dict[str, Any] | None) -> dict[str, Any]:
    """Save ``a`` and commit it, save ``b``, and load at once what ``latest`` names.

    Returns:
        ``error`` (class, text) or None, ``path`` as returned, ``steps`` of the engine, ``report``: outcomes by component.
    """
    engine = build_engine(seed=1, stage=2, config=WRITER)
    train(engine, 2)
    with torch.no_grad():  # else tensors cannot be handed to the writing process
        engine.save_checkpoint(folder, tag="a")
    train(engine, 1)
    with torch.no_grad():
        engine.save_checkpoint(folder, tag="b")
    path, error, report = None, None, None
    with dspatch_or_not(settings) as dspatch:
        try:
            path, _ = engine.load_checkpoint(folder)
        except Exception as raised:
            error = (type(raised).__name__, str(raised))
        report = dspatch.last_report(engine) if dspatch is not None else None
    steps = engine.global_steps
    waiting = engine.checkpoint_engine.get_commit_info() is not None
    engine.destroy()
    return {
        "error": error,
        "path": path and Path(path).parent.name,
        "steps": steps,
        "waiting": waiting,
        "report": None if report is None else {name: one.word for name, one in report.outcomes.items()},
    }
