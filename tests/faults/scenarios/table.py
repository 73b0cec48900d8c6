"""One fault in one kind of engine, loaded under the guard. Runs inside ranks.

Faults are made in the files, in the engine that loads, or below dspatch: behind the optimizer's own ``load_state_dict``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.faults.scenarios.below import behind_the_optimizer
from tests.live.scenarios import FAULTS
from tests.support import damage, engines
from tests.support.engines import build_engine, train
from tests.support.inside import with_dspatch

#: Faults of a tag folder ``a``, next to a later tag ``b``; made by rank 0.
IN_FILES: dict[str, Callable[[Path], object]] = {
    "bit rot in a shard": lambda folder: damage.flip_bit(damage.shard(folder / "a", 1)),
    "bit rot in the model file": lambda folder: damage.flip_bit(damage.model_file(folder / "a")),
    "another tag's shard": lambda folder: damage.take_shard_of(folder / "a", folder / "b", 1),
    "another rank's shard": lambda folder: damage.swap_shards(folder / "a"),
    "no scheduler saved": lambda folder: [
        damage.rewrite(path, lambda tree: tree.update(lr_scheduler=None))
        for path in (folder / "a").glob("*model_states.pt")
    ],
}


def load(folder: str, saved: dict[str, Any], fault: str) -> dict[str, Any]:
    """Save ``a`` and ``b``, make the fault, load ``a`` into a fresh engine.

    Returns:
        ``error`` (class, text) or None, and ``lost``: component -> outcome of the report, where it is not ``restored``.
    """
    engine = build_engine(**saved)
    train(engine, 3)
    engine.save_checkpoint(folder, tag="a")
    train(engine, 1)
    engine.save_checkpoint(folder, tag="b")
    if fault in IN_FILES and dist.get_rank() == 0:
        IN_FILES[fault](Path(folder))
    dist.barrier()
    fresh = _engine(saved, fault)
    if fault in FAULTS:
        behind_the_optimizer(fresh, lambda: FAULTS[fault](fresh, folder))
    error = None
    with with_dspatch() as dspatch:
        try:
            fresh.load_checkpoint(folder, tag="a")
        except Exception as raised:
            error = (type(raised).__name__, str(raised))
        report = dspatch.last_report(fresh)
    lost = {} if report is None else {name: one.word for name, one in report.outcomes.items() if one.word != "restored"}
    return {"error": error, "lost": lost}


def _engine(saved: dict[str, Any], fault: str) -> Any:
    if fault != "param groups swapped":
        return build_engine(**{**saved, "seed": 7})
    original = engines._param_groups
    engines._param_groups = lambda *args: original(*args)[::-1]
    try:
        return build_engine(**{**saved, "seed": 7})
    finally:
        engines._param_groups = original
