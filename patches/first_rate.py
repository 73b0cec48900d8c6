"""The first step after a load runs at the learning rate of the restored schedule.

Symptom: after ``load_checkpoint(..., load_optimizer_states=False)`` the schedule is restored, and the first step runs at
the rate that a fresh schedule begins with (a warmup's 0).
Cause: the schedulers of ``deepspeed.runtime.lr_schedules`` restore only their position; rates come back with the
optimizer's param groups, which such a load leaves out, and an elastic checkpoint does not hold.
Change: behind such a load the restored scheduler sets its own rates; INFO once.
Limits: schedulers of DeepSpeed and torch; those of other packages are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dspatch import log
from dspatch.verdict import first_rate
from dspatch.verdict.request import Request
from dspatch.verdict.running import current


def repair_rate(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Load; then let the restored scheduler set the rates, if nothing else has."""
    returned = wrapped(*args, **kwargs)
    load = current()
    request = Request.from_call(wrapped, args, kwargs)
    if returned[0] is not None and first_rate.comes_from_schedule(request, {} if load is None else load.files):
        moved = first_rate.put_right(instance)
        if moved:
            _, had, has = moved[0]
            log.info_once(
                "first-rate", f"the learning rate was set to that of the restored schedule, {has:g}; "
                f"DeepSpeed would have taken the first step with {had:g}",
            )  # fmt: skip
    return returned
