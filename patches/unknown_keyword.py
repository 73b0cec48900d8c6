"""An optimizer whose loader lags behind its caller is not refused for a keyword that it has no use for.

Symptom: a run with MiCS cannot resume: ``load_checkpoint`` raises TypeError on ``param_shapes``; one in bf16 with
``BF16_Optimizer`` on ``load_serial``.
Cause: ``DeepSpeedEngine._load_zero_checkpoint`` passes keywords that ``MiCS_Optimizer.load_state_dict`` and
``BF16_Optimizer.load_state_dict`` do not take; the first matters for universal checkpoints alone, the second for
``pipeline_loading_checkpoint`` alone (commit 7ed952eff).
Change: keywords that the loader does not take are dropped; INFO once.
Limits: universal loads keep theirs, and fail as before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from dspatch import log
from dspatch.live.attributes import flag
from dspatch.verdict.running import current


def drop_unknown(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call through without the keywords that the loader does not take."""
    known = inspect.signature(wrapped).parameters
    unknown = [name for name in kwargs if name not in known]
    load = current()
    universal = load is not None and flag(load.engine, "load_universal_checkpoint")
    if not unknown or universal or any(one.kind is one.VAR_KEYWORD for one in known.values()):
        return wrapped(*args, **kwargs)
    log.info_once("unknown-keyword", f"{type(instance).__name__} loads without {', '.join(unknown)}, which it does not take")
    return wrapped(*args, **{name: value for name, value in kwargs.items() if name in known})
