"""Which files an inspection reads, and reading them: one process for few files, one for each core for many."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dspatch.offline.record import FileRecord, Models, blank, read
from dspatch.offline.survey import Survey

#: Files from which on several processes are worth their start.
_MANY = 200
_BATCH = 32


@dataclass(frozen=True, slots=True)
class Item:
    """One file to read: the tag, or the folder of a stray file; its name in there; bytes."""

    tag: str
    name: str
    size: int
    stray: bool = False


def plan(survey: Survey, tags: Sequence[str]) -> list[Item]:
    """Files of the chosen tags, and files in other places that may belong to them, in a fixed order."""
    items = [Item(name, entry.name, entry.size) for name in tags if (listing := survey.tag(name)) is not None
             for entry in listing.entries]  # fmt: skip
    items += [Item(folder, entry.name, entry.size, True) for folder, entries in survey.strays.items()
              for entry in entries if folder not in tags]  # fmt: skip
    return items


def share(items: Sequence[Item], part: int, parts: int) -> list[Item]:
    """The files of one of several parts, of about the same number of bytes each.

    Args:
        items: all files.
        part: 1 to ``parts``.
        parts: how many.
    """
    loads = [0] * parts
    mine = []
    for item in sorted(items, key=lambda one: (-one.size, one.tag, one.name)):
        lightest = loads.index(min(loads))
        # A file costs something whatever it weighs.
        loads[lightest] += item.size + 100_000
        if lightest == part - 1:
            mine.append(item)
    return sorted(mine, key=lambda one: (one.stray, one.tag, one.name))


def read_all(
    survey: Survey, items: Sequence[Item], progress: Callable[[int, int], object] | None = None
) -> list[FileRecord]:
    """Records of files, in the order of ``items``.

    Args:
        survey: of the checkpoint folder.
        items: from ``plan``.
        progress: called with files done and files in all.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if len(items) < _MANY or cores < 2:
        return list(_counted(_read_batch(survey.folder, list(items)), len(items), progress))
    batches = [list(items[at : at + _BATCH]) for at in range(0, len(items), _BATCH)]
    found: list[FileRecord] = []
    with ProcessPoolExecutor(min(cores, len(batches))) as pool:
        for records in pool.map(_read_list, [survey.folder] * len(batches), batches):
            found += records
            if progress is not None:
                progress(len(found), len(items))
    return found


def folder_of(survey: Survey, tag: str) -> Path:
    """The folder of a tag or of stray files."""
    return Path(survey.folder) if tag == "." else Path(survey.folder, tag)


def _counted(
    records: Iterable[FileRecord], total: int, progress: Callable[[int, int], object] | None
) -> Iterable[FileRecord]:
    for number, one in enumerate(records, 1):
        yield one
        if progress is not None:
            progress(number, total)


def _read_list(folder: str, items: list[Item]) -> list[FileRecord]:
    return list(_read_batch(folder, items))


def _read_batch(folder: str, items: list[Item]) -> Iterable[FileRecord]:
    models = Models()
    for item in items:
        place = Path(folder) if item.tag == "." else Path(folder, item.tag)
        try:
            yield read(item.tag, place, item.name, item.size, models)
        except OSError as error:
            made = blank(item.tag, item.name, item.size)
            made.damage = ["unreadable", f"cannot be read ({error.strerror or error})"]
            yield made
