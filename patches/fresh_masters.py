"""Masters follow the weights when a load leaves the optimizer out.

Symptom: after ``load_checkpoint(..., load_optimizer_states=False)`` the weights are right, and the first step puts the
weights of the fresh model back.
Cause: at stage 0 in 16 bit nothing refreshes the fp32 masters from the loaded weights (``DeepSpeedEngine._load_checkpoint``
does it for ``load_module_only`` alone), in old releases at the other stages neither.
Change: behind such a load masters are compared with the weights and, where they differ, made from them; INFO once.
Limits: their fp32 bits are not in the weights, as with every load that leaves the optimizer out; the report says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dspatch import log
from dspatch.live.attributes import flag
from dspatch.verdict.masters import refresh_masters, stale_masters
from dspatch.verdict.request import Request


def repair_masters(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Load; then, if masters were not asked for and do not fit the weights, make them from the weights."""
    returned = wrapped(*args, **kwargs)
    left_out = "masters" not in Request.from_call(wrapped, args, kwargs).asked
    if left_out and returned[0] is not None and not flag(instance, "load_universal_checkpoint"):
        names = stale_masters(instance)
        if names:
            refresh_masters(instance)
            log.info_once(
                "fresh-masters",
                f"masters were made from the loaded weights ({len(names)} parameters, first {names[0]}); "
                "DeepSpeed would have let the first step undo the load",
            )
    return returned
