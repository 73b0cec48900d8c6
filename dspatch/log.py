"""The logger of dspatch: name ``dspatch``, propagating, without a NullHandler.

A NullHandler would switch off logging's last resort, which prints warnings in scripts that never set logging up. Those
are the scripts that need them.
"""

from __future__ import annotations

import logging
import os
import threading

_NAME = "dspatch"
_said: set[str] = set()
_lock = threading.Lock()


class _UntilSomebodyListens(logging.StreamHandler):  # type: ignore[type-arg]
    """Prints to stderr as long as the root logger has no handler; the last resort would swallow INFO and DEBUG."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def logger() -> logging.Logger:
    """The logger ``dspatch``."""
    return logging.getLogger(_NAME)


def set_level(level: str) -> None:
    """Apply ``DSPATCH_LOG_LEVEL``; an empty text leaves the logger alone."""
    if not level:
        return
    logger().setLevel(level)
    if not any(isinstance(handler, _UntilSomebodyListens) for handler in logger().handlers):
        handler = _UntilSomebodyListens()
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
        logger().addHandler(handler)


def rank_label() -> str:
    """``[rank k/n]`` from the launcher's variables, empty in a process that no launcher started."""
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return f"[rank {rank}/{world or '?'}]" if rank else ""


def tell(mode: str, text: str) -> None:
    """Log ``text`` at WARNING, in the mode ``observe`` at INFO."""
    logger().log(logging.INFO if mode == "observe" else logging.WARNING, "%s", text)


def warn_once(key: str, text: str) -> bool:
    """Log ``text`` at WARNING with the rank before it, once per process for each ``key``.

    Returns:
        Whether it was said now.
    """
    return _once(logging.WARNING, key, text)


def info_once(key: str, text: str) -> bool:
    """The same at INFO."""
    return _once(logging.INFO, key, text)


def _once(level: int, key: str, text: str) -> bool:
    with _lock:
        if key in _said:
            return False
        _said.add(key)
    logger().log(level, "%s", " ".join(part for part in (rank_label(), text) if part))
    return True


def add_note(error: BaseException, text: str) -> None:
    """``BaseException.add_note`` where there is one (Python 3.11); before that the text goes to the log."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        logger().error("%s", text)
