"""The state of a scheduler that the engine does not own reaches the caller.

Symptom: a checkpoint was saved with a scheduler, the engine that loads has none, because the caller steps one of its
own; the saved state is neither restored nor returned.
Cause: ``DeepSpeedEngine._load_checkpoint`` filters ``lr_scheduler`` out of the returned ``client_state`` whether or not it
restored one.
Change: the entry is put back into ``client_state``; INFO once, beside the WARNING that the engine has no place for it.
Limits: not for pipelines and universal checkpoints, which load their weights elsewhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from dspatch import log
from dspatch.verdict.running import current


def keep_scheduler(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Keep what the file holds of a scheduler, for the guard to hand out."""
    load = current()
    if load is not None and load.request.scheduler_states and getattr(instance, "lr_scheduler", None) is None:
        checkpoint = inspect.signature(wrapped).bind(*args, **kwargs).arguments.get("checkpoint")
        state = checkpoint.get("lr_scheduler") if isinstance(checkpoint, dict) else None
        if state is not None:
            load.put_back["lr_scheduler"] = state
            log.info_once("client-scheduler", "the saved scheduler's state was put back into client_state['lr_scheduler']")
    return wrapped(*args, **kwargs)
