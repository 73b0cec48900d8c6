"""ZeRO-3 weights come from the tag that was asked for.

Symptom: with ``load_optimizer_states=False`` the weights are those of the tag in ``latest``, while the returned path
and the counters belong to the tag asked for; without ``latest`` the load fails.
Cause: ``DeepSpeedEngine._load_checkpoint`` calls ``get_fp32_state_dict_from_zero_checkpoint`` without a tag (DeepSpeed
issue 8499).
Change: the tag of the running load is passed on when the caller passes none; said once at INFO.
Limits: only inside a load; scripts that call the function themselves keep its own default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from dspatch import log
from dspatch.verdict.running import current


def resolve_tag(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pass the running load's tag on."""
    load = current()
    if load is None or load.request.tag is None:
        return wrapped(*args, **kwargs)
    bound = inspect.signature(wrapped).bind(*args, **kwargs)
    if bound.arguments.get("tag") is None:
        bound.arguments["tag"] = load.request.tag
        log.info_once(
            "weights-tag", f"weights are read from the tag asked for ({load.request.tag}); DeepSpeed would use `latest`"
        )
    return wrapped(*bound.args, **bound.kwargs)
