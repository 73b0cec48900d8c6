"""A module-only load at ZeRO-3 loads the module.

Symptom: ``load_checkpoint(..., load_module_only=True)`` returns a path at ZeRO-3, and every trained weight is what it
was before.
Cause: the model files of stage 3 hold parameters without elements, the shards are passed over for a module-only load,
and weights are put together from the shards only with ``load_optimizer_states=False``
(``DeepSpeedEngine._load_checkpoint``).
Change: a module-only load is passed on with ``load_optimizer_states=False``, which it means anyhow; INFO once.
Limits: mixtures of experts have another way at this stage and are left alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from dspatch import log
from dspatch.live.attributes import flag
from dspatch.verdict.request import Request


def ask_for_weights(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pass a module-only load on in the form that loads weights."""
    request = Request.from_call(wrapped, args, kwargs)
    if not (request.module_only and request.optimizer_states and _weights_lie_in_shards(instance)):
        return wrapped(*args, **kwargs)
    bound = inspect.signature(wrapped).bind(*args, **kwargs)
    bound.arguments["load_optimizer_states"] = False
    log.info_once(
        "module-only",
        "the weights of this module-only load are put together from the shards; DeepSpeed would have loaded none",
    )
    return wrapped(*bound.args, **bound.kwargs)


def _weights_lie_in_shards(engine: Any) -> bool:
    special = flag(engine, "has_moe_layers") or flag(engine, "load_universal_checkpoint")
    return hasattr(engine.optimizer, "fp32_partitioned_groups_flat") and not special
