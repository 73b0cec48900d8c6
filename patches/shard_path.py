"""A tag that DeepSpeed's path resolver cannot take is resolved by DeepSpeed's own naming scheme.

Symptom: weights are restored, all Adam moments stay zero, the load reports success.
Cause: the resolver of ZeRO shard paths puts the tag through ``int()`` (or joins an integer); the caller swallows the
exception. In no upstream release; it is the report that dspatch began with, and lives in forks.
Change: when the resolver raises ``ValueError`` or ``TypeError``, the path is built as ``save_checkpoint`` builds it and
a WARNING says so; with ``DSPATCH_TAGS=error`` the exception goes on, and is raised by the guard if somebody swallows it.
Limits: only acts after the resolver has raised; a resolver that returns a wrong path is left to the verdict.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from dspatch import log
from dspatch.activation import settings_in_force
from dspatch.checkpoint.layout import shard_file
from dspatch.live.attributes import flag, rank_in
from dspatch.verdict.request import tag_text
from dspatch.verdict.running import current


def resolve_shard_path(
    wrapped: Callable[..., str], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    """The shard's path, from DeepSpeed or, where it raises on the tag, by its naming scheme."""
    try:
        return wrapped(*args, **kwargs)
    except (TypeError, ValueError) as error:
        load = current()
        if settings_in_force().tags == "error":
            if load is not None:
                load.saw(error)
            log.add_note(
                error, "dspatch: DSPATCH_TAGS=resolve builds the shard's path by DeepSpeed's naming scheme instead"
            )
            raise
        path = _by_naming_scheme(wrapped, instance, args, kwargs)
        _forget_inner(error)
        log.warn_once(
            f"shard-path:{os.path.dirname(path)}",  # once a load, not once a shard
            f"DeepSpeed cannot build a shard's path from this tag ({type(error).__name__}: {error}); "
            f"resolved by its naming scheme to {path}. DSPATCH_TAGS=error makes this an error",
        )
        return path


def _by_naming_scheme(wrapped: Callable[..., str], engine: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    given = inspect.signature(wrapped).bind(*args, **kwargs).arguments
    dp_rank = given["dp_rank"] if "dp_rank" in given else rank_in(engine.optimizer.dp_process_group)[0]
    mpu = getattr(engine, "mpu", None)
    mp_rank = given.get("mp_rank", 0 if mpu is None else mpu.get_model_parallel_rank())
    bf16 = given.get("bf16_mode", flag(engine, "bfloat16_enabled"))
    folder = tag_text(given["tag"]) or ""
    return os.path.join(given["checkpoints_path"], folder, shard_file(dp_rank, mp_rank, bool(bf16)))


def _forget_inner(error: BaseException) -> None:
    """The error is repaired; an inner resolver that was traced must not bring it up again."""
    load = current()
    if load is not None:
        load.raised[:] = [known for known in load.raised if known is not error]
