"""What lies in a checkpoint folder: tags, their files, and files of DeepSpeed's names in other places. Opens nothing but
``latest``.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dspatch.checkpoint import layout, tags
from dspatch.errors import DspatchError

_MOST_STRAYS = 1_000


class CannotLook(DspatchError):
    """The folder is not there, is no folder, or may not be read."""


@dataclass(slots=True)
class Entry:
    """One file: ``name`` relative to its folder with ``/``, ``size`` in bytes, ``link`` when it is a link out of it."""

    name: str
    size: int
    mtime: float
    link: bool = False


@dataclass(slots=True)
class TagListing:
    """One tag folder.

    Attributes:
        name: the tag. kind: as in ``tags.TagInfo``. mtime: of its newest file. entries: its files with DeepSpeed's names, and
        those of ``zero/`` in a universal checkpoint. others: names of all other files in it. swapped: number of files in
        ``offloaded_tensors``; -1 without that folder.
    """

    name: str
    kind: str
    mtime: float
    entries: list[Entry] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    swapped: int = -1


@dataclass(slots=True)
class Survey:
    """What lies in a checkpoint folder.

    Attributes:
        folder: the checkpoint folder. notes: what was assumed on the way to it. asked_tag: the tag, when a tag folder was
        given. latest, latest_universal: text, tag and problem of those files, None without the file. tags: newest first.
        strays: folder (relative) -> files with DeepSpeed's names where no tag keeps them. looks_like: what a folder without
        tags is. export: weights in a form for inference, and nothing of DeepSpeed.
    """

    folder: str
    notes: list[str] = field(default_factory=list)
    asked_tag: str | None = None
    latest: dict[str, str | None] | None = None
    latest_universal: dict[str, str | None] | None = None
    tags: list[TagListing] = field(default_factory=list)
    strays: dict[str, list[Entry]] = field(default_factory=dict)
    looks_like: str = ""
    export: bool = False

    def tag(self, name: str) -> TagListing | None:
        """The tag of this name; None when there is none."""
        return next((one for one in self.tags if one.name == name), None)

    def as_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Survey:
        """The other way."""
        made = cls(**{**data, "tags": [], "strays": {}})
        for one in data["tags"]:
            made.tags.append(TagListing(**{**one, "entries": [Entry(**entry) for entry in one["entries"]]}))
        made.strays = {folder: [Entry(**entry) for entry in entries] for folder, entries in data["strays"].items()}
        return made


def look(given: str | os.PathLike[str], tag: str | None = None) -> Survey:
    """List a checkpoint folder, or the one that a tag folder, one of its files or the level above leads to.

    Raises:
        CannotLook: there is no such folder, it is a file, or it may not be read.
    """
    path = Path(given)
    _readable(path)
    made = _find(path, tag)
    root = Path(made.folder)
    made.latest, made.latest_universal = _latest(root, layout.LATEST), _latest(root, layout.LATEST_UNIVERSAL)
    infos = tags.list_tags(root)
    if tag is not None and tag not in {one.name for one in infos} and _inside(root, tag):
        info = tags.tag_info(root / tag, tag)  # deeper than two levels
        infos += [info] if info is not None else []
    made.tags = [_list_tag(one) for one in infos]
    if not infos:
        made.looks_like, made.export = tags.looks_like(root), tags.is_export(root)
    made.strays = _strays(root, made.tags)
    return made


def _readable(path: Path) -> None:
    try:
        # A folder that may be listed and not entered says nothing about its files.
        os.stat(path)
        if path.is_dir():
            os.listdir(path)
            os.stat(path / ".")
    except FileNotFoundError:
        like = tags.looks_like(path)
        raise CannotLook(f"there is no folder {_shown(path)}" + (f" ({like})" if like else "")) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CannotLook(f"{_shown(path)} cannot be read ({reason})") from error


def _find(path: Path, tag: str | None) -> Survey:
    if not path.is_dir():
        if layout.parse(path.name) is None:
            raise CannotLook(f"{_shown(path)} is a file, not a checkpoint folder")
        path = path.resolve()
        note = f"{_shown(path.name)} is one file of the tag {_shown(path.parent.name)}, which is looked at here"
        return Survey(str(path.parent.parent), [note], path.parent.name)
    if (
        tag is None
        and tags.tag_info(path, "") is not None
        and not (path / layout.LATEST).is_file()
        and not _has_tags(path)
    ):
        # `.` and `..` have no name of their own.
        path = path if path.name else path.resolve()
        note = f"{_shown(path)} is a tag folder; its checkpoint folder is {_shown(path.parent)}"
        return Survey(str(path.parent), [note], path.name)
    below = tags.one_level_down(path) if not (path / layout.LATEST).is_file() and not _has_tags(path) else None
    if below is not None:
        return Survey(str(below), [f"{_shown(path)} is one level above; looking at {_shown(below)}"])
    return Survey(str(path))


def _has_tags(path: Path) -> bool:
    """Whether tags lie directly in a folder (nested ones are found one level below, too)."""
    return any("/" not in one.name for one in tags.list_tags(path))


def _latest(root: Path, name: str) -> dict[str, str | None] | None:
    found = tags.read_latest(root, name)
    if found.problem == "is not there":
        return None
    return {"text": found.text, "tag": found.tag, "problem": found.problem}


def _inside(root: Path, tag: str) -> bool:
    return bool(tag.strip()) and not os.path.isabs(tag) and ".." not in Path(tag).parts and "\0" not in tag


def _list_tag(info: tags.TagInfo) -> TagListing:
    made = TagListing(info.name, info.kind, info.mtime)
    for entry in _scan(info.path):
        if _is_folder(entry):
            if entry.name == layout.OFFLOADED:
                made.swapped = sum(len(files) for _, _, files in os.walk(entry.path))
            elif entry.name == layout.UNIVERSAL and info.kind == "universal":
                made.entries += _universal(Path(entry.path))
            continue
        if layout.parse(entry.name) is None:
            made.others.append(entry.name)
        else:
            made.entries.append(_entry(entry, entry.name, info.path))
    made.entries.sort(key=lambda one: one.name)
    made.others.sort()
    return made


def _universal(folder: Path) -> list[Entry]:
    found = []
    for entry in _scan(folder):
        if not _is_folder(entry):
            found.append(_entry(entry, f"{layout.UNIVERSAL}/{entry.name}", folder))
            continue
        inside = (one for one in _scan(Path(entry.path)) if not _is_folder(one))
        found += [_entry(one, f"{layout.UNIVERSAL}/{entry.name}/{one.name}", folder) for one in inside]
    return found


def _strays(root: Path, listed: list[TagListing]) -> dict[str, list[Entry]]:
    """Files of DeepSpeed's names directly in the folder, in subfolders of tags, and in temporary or partial siblings."""
    found: dict[str, list[Entry]] = {}
    places: list[tuple[str, Path]] = [(".", root)]
    known = {one.name: one for one in listed}
    for entry in _scan(root):
        if _is_folder(entry) and entry.name not in known:
            places.append((entry.name, Path(entry.path)))
    for one in listed:
        for entry in _scan(root / one.name):
            name = f"{one.name}/{entry.name}"
            if _is_folder(entry) and entry.name not in (layout.UNIVERSAL, layout.OFFLOADED) and name not in known:
                places.append((name, Path(entry.path)))
        # A sibling that holds only a part of a tag, or has the name of a temporary folder, may hold what another lacks.
        if layout.is_temporary(one.name) or len({_group(entry.name) for entry in one.entries}) < 2:
            found[one.name] = list(one.entries)
    for name, path in places:
        inside = [entry for entry in _scan(path) if layout.parse(entry.name) and not _is_folder(entry)]
        if inside:
            found[name] = sorted((_entry(entry, entry.name, path) for entry in inside), key=lambda entry: entry.name)
    kept: dict[str, list[Entry]] = {}
    left = _MOST_STRAYS
    for name in sorted(found):
        kept[name] = found[name][:left]
        left -= len(kept[name])
    return {name: entries for name, entries in kept.items() if entries}


def _group(name: str) -> str:
    role = layout.parse(name)
    return "shards" if role is not None and role.kind in ("shard", "expert_optimizer") else "weights"


def _entry(entry: os.DirEntry[str], name: str, folder: Path) -> Entry:
    try:
        state = entry.stat()
        link = entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(folder.resolve())
    except OSError:
        # A dangling link, or a file that went away: reading it says so.
        return Entry(name, 0, 0.0, True)
    return Entry(name, state.st_size, state.st_mtime, link)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda one: one.name)
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _shown(path: object) -> str:
    text = str(path)
    return text if text.isprintable() else repr(text)
