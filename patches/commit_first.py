"""A load right behind a save waits until that save is written.

Symptom: with a decoupled checkpoint engine, a load right behind a save takes the checkpoint before it, since ``latest`` is
not written yet, or reads files that are half-written.
Cause: such an engine commits a save at the next step boundary (``DeepSpeedEngine._commit_decoupled_checkpoint``), and
``load_checkpoint`` does not ask whether one is open.
Change: an open save is committed before anything is looked at; INFO once.
Limits: takes as long as the rest of the write takes; a writing process that has died raises, as it does at the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dspatch import log
from dspatch.live.attributes import open_save


def finish_save(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Commit what is open, then load."""
    tag = open_save(instance)
    if tag is not None and hasattr(instance, "_commit_decoupled_checkpoint"):
        log.info_once("commit-first", f"the save of tag {tag!r} was finished before the load, which would not have seen it")
        instance._commit_decoupled_checkpoint()
    return wrapped(*args, **kwargs)
