"""Spreading one inspection over many machines: what each has read, as a file, and putting the files together.

The parts share nothing and need no order: each lists the folder, takes its share of the files, and writes what they say.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dspatch.errors import DspatchError, shorten
from dspatch.offline.deep import Covered
from dspatch.offline.reading import Item
from dspatch.offline.record import FileRecord
from dspatch.offline.survey import Survey

#: What the files of ``--part`` call themselves; they are read by the dspatch that wrote them only.
FORMAT = "dspatch inspect part 1"
_LARGEST = 4 << 30


class BadParts(DspatchError):
    """Files given to ``--merge`` are not the parts of one inspection."""


@dataclass(slots=True)
class Part:
    """What one of ``count`` parts has read.

    Attributes:
        number: 1 to ``count``. deep: with the deep check. survey: what this part saw in the folder. chosen: the tags.
        items: all files of the inspection. mine: those of this part. records: of ``mine``, in the same order. covered: how
        far the deep check came.
    """

    number: int
    count: int
    deep: bool
    survey: Survey
    chosen: list[str]
    items: list[Item]
    mine: list[Item]
    records: list[FileRecord]
    covered: Covered | None

    def as_json(self) -> dict[str, Any]:
        """As plain data, for ``load``."""
        return {
            "format": FORMAT, "part": [self.number, self.count], "deep": self.deep, "survey": self.survey.as_json(),
            "chosen": self.chosen, "items": [asdict(one) for one in self.items], "mine": [asdict(one) for one in self.mine],
            "records": [one.as_json() for one in self.records],
            "covered": asdict(self.covered) if self.covered is not None else None,
        }  # fmt: skip


def load(path: Path) -> Part:
    """Read a file that ``--part`` wrote.

    Raises:
        BadParts: it is none.
        OSError: it cannot be read.
    """
    if path.stat().st_size > _LARGEST:
        raise BadParts(f"{path} is too large for a part of an inspection")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise BadParts(f"{path} was written by another version of dspatch ({data['format']!r})")
        covered = data["covered"]
        return Part(
            data["part"][0], data["part"][1], data["deep"], Survey.from_json(data["survey"]), data["chosen"],
            [Item(**one) for one in data["items"]], [Item(**one) for one in data["mine"]],
            [FileRecord.from_json(one) for one in data["records"]], Covered(**covered) if covered is not None else None,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BadParts(f"{path} is no file that `dspatch inspect --part` wrote ({type(error).__name__})") from error


def join(found: Sequence[Part]) -> list[Part]:
    """Check that parts belong together, and put them in order.

    Raises:
        BadParts: one is missing or twice there, or they saw different folders.
    """
    count = found[0].count
    numbers = sorted(one.number for one in found)
    if any(one.count != count for one in found):
        raise BadParts(
            f"these are parts of different inspections (of {shorten(sorted({one.count for one in found}))} parts)"
        )
    absent = sorted(set(range(1, count + 1)) - set(numbers))
    if absent:
        raise BadParts(f"part {shorten(absent)} of {count} is not there")
    if len(numbers) != count:
        raise BadParts(f"a part of {count} is there twice")
    ordered = sorted(found, key=lambda one: one.number)
    first = ordered[0]
    for one in ordered[1:]:
        if one.items != first.items or one.chosen != first.chosen or one.deep != first.deep:
            raise BadParts(
                f"part {one.number} saw other files than part 1: the folder changed, or nodes see different folders"
            )
    return ordered


def covered(joined: Sequence[Part]) -> Covered | None:
    """How far the deep check came in all parts together; seconds are those of the slowest."""
    each = [one.covered for one in joined if one.covered is not None]
    if not each:
        return None
    return Covered(
        sum(one.done for one in each), sum(one.total for one in each), sum(one.files_done for one in each),
        sum(one.files for one in each), max(one.seconds for one in each), any(one.stopped for one in each),
    )  # fmt: skip
