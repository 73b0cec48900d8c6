"""Save and resume under a tag, as in the report that started dspatch. Runs inside ranks."""

from __future__ import annotations

from typing import Any

from tests.support.engines import build_engine, train
from tests.support.inside import dspatch_or_not
from tests.support.state import differences, moments_in_use, snapshot

#: The configuration of the report.
ENGINE: dict[str, Any] = {
    "stage": 2,
    "precision": "fp16",
    "offload": "cpu",
    "optimizer": "adamw",
    "model": {"checkpointing": True},
}
STEPS = 6


def resume(folder: str, tag: str | int, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """Train, save, train on; load into a fresh engine with other weights; train that on over the same data.

    Args:
        settings: for ``dspatch.activate`` around the load; None leaves dspatch out.

    Returns:
        ``path`` as returned by the load, ``wrong``: names of state that differs from the saved, ``moments``: elements of
        optimizer tensors that are not 0, as saved and as loaded, ``losses`` after the save and ``resumed``: the same
        steps after the load.
    """
    engine = build_engine(seed=1, **ENGINE)
    train(engine, STEPS)
    engine.save_checkpoint(folder, tag=tag)
    saved = snapshot(engine)
    losses = train(engine, 4)

    fresh = build_engine(seed=2, **ENGINE)
    with dspatch_or_not(settings):
        path, _ = fresh.load_checkpoint(folder, tag=tag)
    loaded = snapshot(fresh)
    return {
        "path": path,
        "wrong": [name for name in differences(saved, loaded) if name != "counter/micro_steps"],
        "moments": (moments_in_use(saved), moments_in_use(loaded)),
        "losses": losses,
        "resumed": train(fresh, 4, first=STEPS),
    }
