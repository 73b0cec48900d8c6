"""Kinds of engines that single faults need. Runs inside ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from tests.support.engines import build_engine, full_weights, train
from tests.support.inside import described, dspatch_or_not
from tests.support.models import TinyNet


def load(
    folder: str, kind: str, settings: dict[str, Any] | None, arguments: dict[str, Any] | None = None, late: bool = False
) -> dict[str, Any]:
    """Save a ZeRO-3 engine, load it into another kind; ``late``: with gathers that end late.

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
    below = gathers_end_late() if late else nullcontext()
    with below, dspatch_or_not(settings) as dspatch:
        try:
            path, _ = fresh.load_checkpoint(folder, tag="a", **(arguments or {}))
        except Exception as raised:
            error, notes = described(raised)
        report = dspatch.last_report(fresh) if dspatch is not None else None
    loaded, saved = (full_weights(one) for one in (fresh, engine))
    outcomes = None if report is None else {name: one.word for name, one in report.outcomes.items()}
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


def _trained(seed: int) -> Any:
    return build_engine(stage=3, seed=seed)


KINDS = {"inference": _inference, "trained": _trained}


class _Late:
    """The handle of a gather whose bytes arrive when it is waited for, or else before the next broadcast."""

    open: ClassVar[list[_Late]] = []

    def __init__(self, target: torch.Tensor, gathered: torch.Tensor) -> None:
        self._target, self._gathered = target, gathered
        self.open.append(self)

    def wait(self) -> None:
        if self in self.open:
            self.open.remove(self)
            self._target.copy_(self._gathered)


@contextmanager
def gathers_end_late() -> Iterator[None]:
    """What gloo's threads do at random, every time: a gather that nobody waits for ends after the caller has gone on."""
    from deepspeed import comm

    gather, broadcast = comm.all_gather_into_tensor, comm.broadcast

    def late(output: torch.Tensor, tensor: torch.Tensor, *args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        if not async_op:
            return gather(output, tensor, *args, **kwargs)
        gathered = torch.empty_like(output)
        gather(gathered, tensor, *args, **kwargs)
        return _Late(output, gathered)

    def behind(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            for one in tuple(_Late.open):
                one.wait()
        return broadcast(*args, **kwargs)

    comm.all_gather_into_tensor, comm.broadcast = late, behind
    try:
        yield
    finally:
        comm.all_gather_into_tensor, comm.broadcast = gather, broadcast
        _Late.open.clear()
