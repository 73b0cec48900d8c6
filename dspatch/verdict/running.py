"""The load that runs in this thread: where wrappers deep inside DeepSpeed leave what they saw for the guard outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from dspatch.checkpoint.unpickle import Tree
from dspatch.verdict.request import Request


@dataclass(slots=True)
class RunningLoad:
    """One call of ``load_checkpoint``, while it runs.

    Attributes:
        engine: the engine.
        request: what was asked for, with the tag resolved.
        raised: exceptions that came out of a traced function, innermost first, each one once.
        not_restored: names in the checkpoint's module that the model does not have.
        no_source: names in the model that the checkpoint does not have.
        matched: how many names both have; None before the module was loaded.
        files: role -> tree of this rank's files, as far as they were read.
        put_back: entries of the returned ``client_state`` that DeepSpeed leaves out.
    """

    engine: Any
    request: Request
    raised: list[BaseException] = field(default_factory=list)
    not_restored: list[str] = field(default_factory=list)
    no_source: list[str] = field(default_factory=list)
    matched: int | None = None
    files: Mapping[str, Tree] = field(default_factory=dict)
    put_back: dict[str, Any] = field(default_factory=dict)

    def saw(self, error: BaseException) -> None:
        """Remember an exception that passed a traced function."""
        if not any(known is error for known in self.raised):
            self.raised.append(error)


_running: ContextVar[RunningLoad | None] = ContextVar("dspatch_running_load", default=None)


def current() -> RunningLoad | None:
    """The load that runs in this thread, if any."""
    return _running.get()


@contextmanager
def run(load: RunningLoad) -> Iterator[RunningLoad]:
    """Make ``load`` the current one inside the block."""
    token = _running.set(load)
    try:
        yield load
    finally:
        _running.reset(token)
