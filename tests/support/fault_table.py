"""The table of faults: what the catalogue says of each, and what its tests said in one run.

``make faults`` writes it; ``tests/faults/test_table.py`` sees to it that it follows the catalogue.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dspatch.patching.matrix import Fault, Matrix, load
from tests.support.paths import CACHE, ROOT

#: Where the table lies, and the option that has it written.
TABLE = ROOT / "docs" / "faults.md"
OPTION = "--write-table"

#: The outcomes of the last such run, from which ``python -m tests.support.fault_table`` writes the table again when only
#: words of the catalogue have changed.
_LAST = CACHE / "faults.json"

#: Families whose ids this table lists.
FAMILIES = "ADEFG"

_HEADINGS = ("fault", "what is lost", "DeepSpeed", "ends of the range", "dspatch", "shown by", "result", "note")
_PARAMETER = re.compile(r"^(\w+)(?:\[(.*)\])?$")

_INTRODUCTION = """# Faults of upstream releases, and what dspatch does about each

Written by `make faults` from the catalogue in `compat_matrix.yaml` and from what the tests said; do not edit.

prevented: every rank refuses before DeepSpeed touches the engine. repaired: restored all the same; with the patch off it is
loud. caught: measured after the load, every rank raises. told: one WARNING. found: by `dspatch inspect`. loud: DeepSpeed
raises by itself, on every rank under dspatch. not run: dealt with, but the tests cannot run it; the note says why.
Ends of a range: releases that `make ranges` runs, `+` has the fault and `-` has not; ends that are not listed come from
comparing the functions of all releases.
"""


class Results:
    """A pytest plugin that remembers how each test ended, and writes the table behind the last one."""

    def __init__(
        self, ended: dict[tuple[str, str], str] | None = None, kept: dict[str, list[str]] | None = None
    ) -> None:
        """``kept``: rows whose results stay where none of their tests ran, for a run of a part of the tests."""
        self._ended, self._kept = ended or {}, kept or {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst of set-up, call and tear-down."""
        found = _PARAMETER.match(report.nodeid.rpartition("::")[2])
        if found and (report.when == "call" or report.outcome != "passed"):
            key = (found[1], found[2] or "")
            if self._ended.get(key) != "failed":
                self._ended[key] = report.outcome

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the outcomes, and the table."""
        outcomes = [[*key, outcome] for key, outcome in self._ended.items()]
        _LAST.write_text(json.dumps(outcomes), encoding="utf-8")
        self.write()

    def write(self) -> None:
        """Write the table."""
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(render(load(), self.of), encoding="utf-8")

    def of(self, fault: Fault) -> str:
        """How the tests of one fault ended: ``4 passed``. Of tests that are named by ids, only those with its own."""
        counted: Counter[str] = Counter()
        for name in fault.shown:
            mine = {parameter: outcome for (test, parameter), outcome in self._ended.items() if test == name}
            own = {parameter: outcome for parameter, outcome in mine.items() if _names(parameter, fault.id)}
            counted.update((own or mine).values())
            if not mine:
                counted["not in this run"] += 1
        if set(counted) == {"not in this run"} and fault.id in self._kept:
            return self._kept[fault.id][_HEADINGS.index("result")]
        return ", ".join(f"{counted[word]} {word}" for word in sorted(counted))


def render(matrix: Matrix, result: Callable[[Fault], str]) -> str:
    """The whole file.

    Args:
        matrix: with the catalogue.
        result: from a fault to the text of its result.
    """
    faults = [one for one in matrix.faults if one.id[0] in FAMILIES]
    lines = [_HEADINGS, *((*cells(one), result(one), one.note) for one in faults)]
    rows = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]
    return "\n".join([_INTRODUCTION, rows[0], f"|{'---|' * len(_HEADINGS)}", *rows[1:], ""])


def cells(fault: Fault) -> tuple[str, ...]:
    """What the catalogue says of one fault, up to the tests that show it."""
    ends = ", ".join(f"{version} {'+' if has(fault, version) else '-'}" for version in fault.ran)
    return (
        fault.id, fault.title, ", ".join(f"`{part.text}`" for part in fault.deepspeed), ends, fault.does,
        ", ".join(f"`{name}`" for name in fault.shown),
    )  # fmt: skip


def has(fault: Fault, version: str) -> bool:
    """Whether the catalogue says that a release has the fault."""
    from dspatch.patching.ranges import parse_version

    return any(parse_version(version) in part for part in fault.deepspeed)


def rows_of(path: Path) -> dict[str, list[str]]:
    """The cells of a written table, by id."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        parts = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(parts) == len(_HEADINGS) and re.fullmatch(r"[A-Z]\d+", parts[0]):
            found[parts[0]] = parts
    return found


def _names(parameter: str, fault: str) -> bool:
    return re.search(rf"(?<![A-Za-z0-9]){fault}(?![0-9])", parameter) is not None


if __name__ == "__main__":
    last = {(test, one): outcome for test, one, outcome in json.loads(_LAST.read_text(encoding="utf-8"))}
    Results(last, rows_of(TABLE)).write()
