"""Engines that keep optimizer state where no file has it. Runs inside ranks."""

from __future__ import annotations

import logging
from typing import Any

import torch.distributed as dist

from tests.support.engines import build_engine, train
from tests.support.inside import with_dspatch

_ON_CPU = {"device": "cpu", "pin_memory": False}
_ZENFLOW = {"topk_ratio": 0.1, "select_strategy": "step", "select_interval": 4, "update_interval": 2}

ENGINES: dict[str, dict[str, Any]] = {
    "twin-flow": {"stage": 3, "zero": {"sub_group_size": 200, "offload_optimizer": {**_ON_CPU, "ratio": 0.5}}},
    "zenflow": {"stage": 2, "zero": {"overlap_comm": False, "offload_optimizer": _ON_CPU, "zenflow": _ZENFLOW}},
}


def save_and_load(folder: str, kind: str, settings: dict[str, Any], accelerator: bool = True) -> dict[str, Any]:
    """Train, save twice, load into a fresh engine.

    Args:
        kind: of ``ENGINES``.
        settings: of dspatch.
        accelerator: Twin-Flow keeps its first sub-group there, under another name for the only device of this machine.

    Returns:
        ``told``: WARNINGs at the saves; ``outside``: tensors with state in an optimizer that no file knows; ``error``,
        ``outcomes`` and ``findings`` of the load; ``kept``: names of the parameters whose state is outside.
    """
    heard = _Heard()
    logging.getLogger("dspatch").addHandler(heard)
    try:
        with with_dspatch(**settings) as dspatch:
            engine = _engine(kind, 1, accelerator)
            train(engine, 5)
            for tag in ("a", "b"):
                engine.save_checkpoint(folder, tag=tag)
            dist.barrier()
            told = list(heard.warnings)
            fresh = _engine(kind, 2, accelerator)
            error = None
            try:
                fresh.load_checkpoint(folder, tag="b")
            except Exception as raised:
                error = (type(raised).__name__, str(raised))
            report = dspatch.last_report(fresh)
    finally:
        logging.getLogger("dspatch").removeHandler(heard)
    backup = getattr(engine.optimizer, "backup_optimizer", None) or getattr(engine.optimizer, "selective_optimizer", None)
    return {
        "told": told,
        "outside": 0 if backup is None else len(backup.state),
        "error": error,
        "outcomes": {name: one.word for name, one in report.outcomes.items()},
        "findings": report.to_dict()["findings"],
        "kept": _names(engine, 0) if kind == "twin-flow" else [],
    }


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.warnings: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.warnings.append(record.getMessage())


def _engine(kind: str, seed: int, accelerator: bool) -> Any:
    engine = build_engine(seed=seed, optimizer="config:CPUAdam", **ENGINES[kind])
    if kind == "twin-flow" and accelerator:
        # What the constructor writes for the sub-groups that stay on an accelerator; here that is the CPU, too.
        engine.optimizer.subgroup_to_device[0] = "cpu:0"
    return engine


def _names(engine: Any, sub_group: int) -> list[str]:
    own = {id(param): name for name, param in engine.module.named_parameters()}
    return [own[id(param)] for param in engine.optimizer.fp16_groups[sub_group]]
