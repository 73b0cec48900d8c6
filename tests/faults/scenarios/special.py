"""Kinds of engines that single faults need. Runs inside ranks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from tests.support.engines import build_engine, full_weights, train
from tests.support.inside import with_dspatch
from tests.support.models import TinyNet


def load(
    folder: str, kind: str, settings: dict[str, Any] | None, arguments: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Save a ZeRO-3 engine, load it into another kind.

    Returns:
        ``error`` (class, text) or None, its ``notes``, ``path``, ``report``: outcomes by component, ``same``: whether
        the weights are those of the engine that saved.
    """
    engine = build_engine(stage=3, seed=1)
    train(engine, 2)
    engine.save_checkpoint(folder, tag="a")
    dist.barrier()
    fresh = KINDS[kind](2)
    path, error, notes, report = None, None, (), None
    with with_dspatch(**settings) if settings is not None else nullcontext() as dspatch:
        try:
            path, _ = fresh.load_checkpoint(folder, tag="a", **(arguments or {}))
        except Exception as raised:
            error, notes = (type(raised).__name__, str(raised)), tuple(getattr(raised, "__notes__", ()))
        report = dspatch.last_report(fresh) if dspatch is not None else None
    loaded, saved = (full_weights(one) for one in (fresh, engine))
    outcomes = None if report is None else {name: str(one) for name, one in report.outcomes.items()}
    return {"error": error, "notes": notes, "path": bool(path), "report": outcomes,
            "same": all(torch.equal(loaded[name].float(), value.float()) for name, value in saved.items())}  # fmt: skip


def _initialized(seed: int, config: dict[str, Any], **kwargs: Any) -> Any:
    import deepspeed

    torch.manual_seed(seed)
    settings = {"train_micro_batch_size_per_gpu": 4, "steps_per_print": 10**6, **config}
    return deepspeed.initialize(model=TinyNet(), config=settings, dist_init_required=False, **kwargs)[0]


def _inference(seed: int) -> Any:
    """ZeRO-3 without an optimizer."""
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0}
    return _initialized(seed, {"bf16": {"enabled": True}, "zero_optimization": zero})


KINDS = {"inference": _inference}
