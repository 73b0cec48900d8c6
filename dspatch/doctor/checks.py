"""What a check is: a stable id and a function that looks and answers with one line. One that fails takes no other along."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dspatch.doctor.here import Here

OK, WARN, FAIL, SKIP, CRASH = "OK", "WARN", "FAIL", "SKIP", "CRASH"

#: What makes the exit code 1.
PROBLEMS = (FAIL, CRASH)


@dataclass(frozen=True)
class Answer:
    """What a check found.

    Attributes:
        status: ``OK``, ``WARN``, ``FAIL``, ``SKIP`` (it does not apply, or what it needs is not there) or ``CRASH`` (a
            defect of the check).
        line: what was found, one line.
        fix: what to do about it, one line; empty if nothing.
        evidence: more lines, for ``--verbose``.
    """

    status: str
    line: str
    fix: str = ""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """One check: its id, which never changes its meaning, and what it does."""

    id: str
    look: Callable[[Here], Answer]


def ok(line: str, *evidence: str) -> Answer:
    """All well."""
    return Answer(OK, line, "", evidence)


def warn(line: str, fix: str, *evidence: str) -> Answer:
    """Works, but may not be what was meant."""
    return Answer(WARN, line, fix, evidence)


def fail(line: str, fix: str, *evidence: str) -> Answer:
    """Does not work."""
    return Answer(FAIL, line, fix, evidence)


def skip(line: str, fix: str = "") -> Answer:
    """Could not be looked at, or does not apply."""
    return Answer(SKIP, line, fix)


def run_all(checks: Iterable[Check], here: Here) -> list[tuple[str, Answer]]:
    """Run the checks, in order. What one raises becomes its own ``CRASH`` and stops no other."""
    return [(check.id, _run(check, here)) for check in checks]


def _run(check: Check, here: Here) -> Answer:
    try:
        answer = check.look(here)
        # One line each, whatever an error message of somebody else's brings along.
        return Answer(answer.status, _one_line(answer.line), _one_line(answer.fix), answer.evidence)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit and RecursionError too
        told = _one_line(f"{type(error).__name__}: {error}")
        where = traceback.format_exception(type(error), error, error.__traceback__)
        lines = tuple(line for part in where for line in part.splitlines())
        return Answer(CRASH, f"the check itself failed: {told}", "report this, with --verbose", lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())
