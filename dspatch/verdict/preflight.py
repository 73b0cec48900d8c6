"""What can be known before DeepSpeed touches anything: the folder, the tag, and then the files of this rank.

Nothing here talks to other ranks or changes anything. A ``Refusal`` is a finding of this rank alone; ``session`` has
all ranks agree on it before one of them raises.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from dspatch.checkpoint import layout, tags
from dspatch.errors import explain
from dspatch.live.attributes import flag, without_reader
from dspatch.verdict.found import NOTHING, REFUSED, Preflight, Refusal, tags_there
from dspatch.verdict.own_files import read_files
from dspatch.verdict.parallel import other_split
from dspatch.verdict.request import Request


def look(engine: Any, request: Request) -> Preflight:
    """Resolve the tag and read the index of this rank's files."""
    universal = flag(engine, "load_universal_checkpoint")
    refusal = _folder_problem(request)
    if refusal is None and request.tag is None:
        latest = tags.read_latest(request.folder, layout.LATEST_UNIVERSAL if universal else layout.LATEST)
        if latest.problem is not None:
            return Preflight(request, _no_latest(request, latest, universal))
        request = replace(request, tag=latest.tag)
    found = Preflight(request, refusal or _tag_problem(request))
    if found.refusal is None:
        found.not_checked = without_reader(engine)
        if not found.not_checked:
            found.refusal = read_files(engine, found)
        elif not universal:
            found.refusal = other_split(engine, found)
    return found


def _folder_problem(request: Request) -> Refusal | None:
    folder = request.folder
    try:
        if os.path.isdir(folder):
            _look_into(folder)
            return None
        os.stat(folder)
    except PermissionError:
        return _refuse("the checkpoint folder cannot be read", "a readable folder", "no permission", folder)
    except (OSError, ValueError):  # not there, or no possible name
        pass
    found = "a file" if os.path.exists(folder) else "no such folder"
    return Refusal(
        NOTHING,
        explain(
            "there is no checkpoint folder",
            expected="a folder with tags in it",
            found=found,
            where=folder,
            do=_way_to(folder) or "pass the folder that save_checkpoint was given",
        ),
    )


def _look_into(folder: str) -> None:
    """Raise PermissionError if the folder cannot be listed, or nothing in it be reached."""
    os.scandir(folder).close()
    os.stat(os.path.join(folder, "."))


def _no_latest(request: Request, latest: tags.Latest, universal: bool) -> Refusal:
    name = layout.LATEST_UNIVERSAL if universal else layout.LATEST
    # An absent `latest` means that nothing was saved; a wrong one means that something is broken.
    kind = NOTHING if latest.problem == "is not there" else REFUSED
    return Refusal(
        kind,
        explain(
            "there is nothing to load: no tag was passed, and the folder names none",
            expected=f"a tag in the file `{name}`",
            found=f"`{name}` {latest.problem}",
            where=request.folder,
            do=(tags_there(request.folder), _way_to(request.folder)),
        ),
    )


def _tag_problem(request: Request) -> Refusal | None:
    tag, folder = request.tag or "", request.folder
    wrong = ""
    if not tag.strip():
        wrong = "an empty tag, which would read the folder itself"
    elif os.path.isabs(tag):
        wrong = "an absolute path, with which DeepSpeed ignores the folder"
    elif ".." in Path(tag).parts or "\0" in tag:
        wrong = "a tag that leads out of its folder"
    if wrong:
        return _refuse("this tag cannot be loaded", "the name of a tag", f"{wrong} ({tag!r})", folder)
    try:
        there = os.path.isdir(os.path.join(folder, tag))
    except (OSError, ValueError):  # too long for the file system, or not encodable
        there = False
    if there:
        try:
            _look_into(os.path.join(folder, tag))
        except PermissionError:
            return _refuse("the tag cannot be read", "a readable folder", "no permission", os.path.join(folder, tag))
        return None
    return Refusal(
        REFUSED,
        explain(
            "the tag is not there",
            expected=f"a folder {tag if len(tag) < 200 else tag[:200] + '...'!r}"[:300],
            found="no such folder" + _nearly(folder, tag),
            where=folder,
            do=(tags_there(folder), _way_to(folder)),
        ),
    )


def _nearly(folder: str, tag: str) -> str:
    alike = [tag.strip(), tag.strip().removesuffix(".0")]
    for other in alike:
        if other != tag and other and len(other) < 200 and os.path.isdir(os.path.join(folder, other)):
            return f", but there is {other!r}"
    return ""


def _way_to(folder: str) -> str:
    return tags.looks_like(folder)


def _refuse(headline: str, expected: str, found: str, folder: str) -> Refusal:
    text = explain(headline, expected=expected, found=found, where=folder, do=tags_there(folder))
    return Refusal(REFUSED, text)
