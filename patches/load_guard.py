"""Every load ends in a measured verdict, the same on all ranks.

Symptom: ``load_checkpoint`` returns, and a part of the training state, or some of the ranks, was not restored.
Cause: upstream returns ``(None, None)`` when it finds nothing, decides on each rank alone, and compares nothing with the
files afterwards.
Change: request, files and settings are compared between ranks before anything is touched; after the load the live state
is compared with the files of the tag. Lost state raises on every rank, what was left out by request is one WARNING.
Limits: pipeline, MoE and universal checkpoints are loaded and agreed on, their state is reported as not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dspatch.verdict.session import guarded_load


def check_load(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the load under the guard; the return value is DeepSpeed's own."""
    return guarded_load(wrapped, instance, args, kwargs)
