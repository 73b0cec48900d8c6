"""For scenario functions, inside a rank: dspatch for the length of a block, and shared folders."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch.distributed as dist


@contextmanager
def with_dspatch(**settings: Any) -> Iterator[Any]:
    """dspatch armed with these settings (``mode``, ``disable``, ``tags``, ...) inside the block, as before behind it.

    In a rank that started without dspatch this is a late activation, and behind the block every wrapper is gone again.
    """
    was_here = "dspatch" in sys.modules
    import dspatch

    before = {name: value for name, value in dspatch.settings().as_dict().items() if name != "switch"}
    armed = was_here and any(row.state == "applied" for row in dspatch.status())
    dspatch.activate(**settings)
    try:
        yield dspatch
    finally:
        dspatch.deactivate()
        if armed:
            dspatch.activate(**before)


def dspatch_or_not(settings: Mapping[str, Any] | None) -> AbstractContextManager[Any]:
    """``with_dspatch`` with these settings; None: DeepSpeed as it is, and the block's target is None."""
    return nullcontext() if settings is None else with_dspatch(**settings)


def described(raised: BaseException) -> tuple[tuple[str, str], tuple[str, ...]]:
    """Class and text of what a load raised, and the notes on it."""
    return (type(raised).__name__, str(raised)), tuple(getattr(raised, "__notes__", ()))


def from_rank_0(value: Any) -> Any:
    """Rank 0's value on every rank. Collective."""
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def rank() -> int:
    """This process's global rank."""
    return dist.get_rank()
