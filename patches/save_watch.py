"""A save that cannot hold all optimizer state says so.

Symptom: a run with Twin-Flow, SuperOffload or ZenFlow resumes with a part of its moments fresh.
Cause: these keep optimizer state outside of ``optimizer.state_dict``, which is all that ``save_checkpoint`` writes.
Change: after the first save of such an engine rank 0 warns, and names the parameters where it can.
Limits: nothing is repaired; the load is told of again, when it is too late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from dspatch import log
from dspatch.activation import settings_in_force
from dspatch.errors import explain, shorten
from dspatch.live.nowhere import LOST, state_in_no_file

_told: WeakSet[Any] = WeakSet()


def tell_lost_state(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Save; then say once what the checkpoint lacks."""
    saved = wrapped(*args, **kwargs)
    lost = state_in_no_file(instance)
    if lost is not None and instance.global_rank == 0 and instance not in _told:
        _told.add(instance)
        text = explain(
            "this checkpoint cannot be resumed from without loss",
            expected=f"{' and '.join(LOST)} of every parameter in the files",
            found=lost.reason,
            where=shorten(lost.names) if lost.names else "",
            do=("switch the feature off before the first step,",
                "or resume with dspatch.expect(moments='fresh', optimizer_step='fresh')"),
        )
        log.tell(settings_in_force().mode, text)
    return saved
