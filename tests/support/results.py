"""What a scenario gives back: one ``RankResult`` for each rank, whatever happened to it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LogLine:
    """One record of the logger ``dspatch`` or below."""

    level: int
    logger: str
    message: str


@dataclass(frozen=True)
class RankError:
    """Why a rank has no value.

    Attributes:
        kind: ``raised``, ``hang`` (time limit), ``crash`` (the process ended) or ``start`` (it never came up).
        type: name of the exception class, empty if the rank did not raise.
        bases: names of the class and all its base classes.
        message: ``str`` of the exception.
        notes: what ``add_note`` added (an empty tuple before Python 3.11).
        traceback: the formatted traceback, or the end of the rank's output.
    """

    kind: str
    type: str = ""
    bases: tuple[str, ...] = ()
    message: str = ""
    notes: tuple[str, ...] = ()
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.type} {self.message}\n{self.traceback}"


@dataclass(frozen=True)
class RankResult:
    """One rank's part of a scenario.

    Attributes:
        rank: the global rank.
        value: what the scenario function returned; None if it did not.
        error: None if it returned.
        log_records: what the logger ``dspatch`` said meanwhile, at any level.
        seconds: time in the scenario function.
    """

    rank: int
    value: Any = None
    error: RankError | None = None
    log_records: tuple[LogLine, ...] = ()
    seconds: float = 0.0

    def said(self, level: int = logging.WARNING) -> list[str]:
        """Messages of the logger ``dspatch`` at ``level`` or above."""
        return [line.message for line in self.log_records if line.level >= level]


class ScenarioFailed(AssertionError):
    """A scenario that had to run to its end did not, on some rank."""


def values(results: Sequence[RankResult]) -> list[Any]:
    """The values of all ranks, in rank order.

    Raises:
        ScenarioFailed: a rank raised, hung or crashed; the message has every rank's traceback.
    """
    failed = [f"--- rank {result.rank}: {result.error}" for result in results if result.error is not None]
    if failed:
        raise ScenarioFailed("\n".join(failed))
    return [result.value for result in results]


def errors(results: Sequence[RankResult]) -> list[RankError]:
    """The errors of all ranks, in rank order.

    Raises:
        ScenarioFailed: a rank ended without an error.
    """
    calm = [result.rank for result in results if result.error is None]
    if calm:
        raise ScenarioFailed(f"rank(s) {calm} raised nothing and returned {[results[rank].value for rank in calm]!r}")
    return [result.error for result in results if result.error is not None]


def noted(raised: Mapping[str, Any], text: str) -> bool:
    """Whether a note on the error that a scenario returned holds ``text``; always before Python 3.11, which has no notes."""
    return any(text in note for note in raised["notes"]) or sys.version_info < (3, 11)


def warnings_of(results: Iterable[RankResult]) -> list[str]:
    """All that the logger ``dspatch`` said at WARNING or above; a healthy twin asserts that this is empty."""
    return [f"rank {result.rank}: {text}" for result in results for text in result.said()]
