"""Tags of a checkpoint folder: which there are, what ``latest`` says, and what a folder looks like when it has none.

Nothing is opened here but ``latest``; what a file holds is for other modules.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dspatch.checkpoint import layout

#: A ``latest`` file holds one tag; nobody writes more than this.
_LATEST_LIMIT = 4_096
#: Files looked at in one folder before it is judged by those.
_LOOK = 20_000

#: Files that tell other kinds of checkpoints, with what they tell.
_OTHER_KINDS = (
    (("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"),
     "a Hugging Face model folder: weights only, no training state"),
    (("adapter_model.safetensors", "adapter_model.bin", "adapter_config.json"),
     "a PEFT adapter folder: adapter weights only, no training state"),
    ((".metadata",), "a PyTorch Distributed Checkpoint (DCP) folder"),
    (("metadata.json", "common.pt"), "a Megatron Core distributed checkpoint"),
    (("latest_checkpointed_iteration.txt",), "a Megatron-LM checkpoint folder"),
    (("model.ckpt.index", "checkpoint"), "a TensorFlow checkpoint folder"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TagInfo:
    """One tag folder.

    Attributes:
        name: the tag, relative to the checkpoint folder, with ``/`` between parts. path: its folder. mtime: newest
        modification time of its files, seconds since the epoch; 0 without files. has_model: it holds files with
        weights. has_shards: it holds optimizer shards. kind: ``training``, ``universal``, or ``no shards`` (stage 0,
        whose model files hold the optimizer, or weights only).
    """

    name: str
    path: Path
    mtime: float
    has_model: bool
    has_shards: bool
    kind: str


@dataclass(frozen=True, slots=True)
class Latest:
    """What ``latest`` says.

    Attributes:
        text: its content as written; None when there is no such file or it cannot be read.
        tag: the tag as DeepSpeed reads it (white space stripped); None when there is none.
        problem: what is wrong, as one clause that completes "``latest`` ..."; None when nothing is.
    """

    text: str | None
    tag: str | None
    problem: str | None


def list_tags(folder: str | os.PathLike[str]) -> list[TagInfo]:
    """The tags of a checkpoint folder, newest first; also nested ones (``a/b``), two levels deep.

    A folder counts as a tag when it holds a file of DeepSpeed's names. Links that lead out of the folder are followed
    as DeepSpeed does. An absent or unreadable folder has no tags.
    """
    root = Path(folder)
    found: list[TagInfo] = []
    for child in _folders(root):
        info = tag_info(child, child.name)
        if info is not None:
            found.append(info)
            continue
        for grandchild in _folders(child):
            info = tag_info(grandchild, f"{child.name}/{grandchild.name}")
            if info is not None:
                found.append(info)
    return sorted(found, key=lambda one: (-one.mtime, one.name))


def tag_info(path: Path, name: str) -> TagInfo | None:
    """What a folder looks like as a tag, by the names in it; None when no name is DeepSpeed's."""
    kinds: set[str] = set()
    newest, universal = 0.0, False
    for entry in _entries(path):
        if entry.name == layout.UNIVERSAL and _is_folder(entry):
            universal = _is_universal(Path(entry.path))
            newest = max(newest, _modified(entry) if universal else 0.0)
            continue
        role = layout.parse(entry.name)
        if role is not None:
            kinds.add(role.kind)
            newest = max(newest, _modified(entry))
    if not kinds and not universal:
        return None
    has_model = bool(kinds & {"model", "model_part", "layer", "expert"})
    has_shards = bool(kinds & {"shard", "expert_optimizer"})
    kind = "universal" if universal else "training" if has_shards else "no shards"
    return TagInfo(name, path, newest, has_model, has_shards, kind)


def read_latest(folder: str | os.PathLike[str], name: str = layout.LATEST) -> Latest:
    """Read the file that names the newest tag as ``DeepSpeedEngine.load_checkpoint`` does; say what is wrong with it.

    Args:
        folder: the checkpoint folder.
        name: ``latest``, or ``latest_universal``.
    """
    path = Path(folder, name)
    if path.is_dir():
        return Latest(None, None, "is a folder, not a file")
    try:
        with open(path, "rb") as handle:
            raw = handle.read(_LATEST_LIMIT + 1)
    except FileNotFoundError:
        return Latest(None, None, "is not there")
    except OSError as error:
        return Latest(None, None, f"cannot be read ({error.strerror})")
    if len(raw) > _LATEST_LIMIT:
        return Latest(None, None, f"holds more than {_LATEST_LIMIT:,} bytes, so it is not a tag")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return Latest(None, None, "is not text")
    return Latest(text, text.strip() or None, _problem(Path(folder), text))


def _problem(folder: Path, text: str) -> str | None:
    tag = text.strip()
    if not tag:
        return "is empty"
    if any(character in tag for character in "\n\r\0"):
        return f"holds {len(tag.splitlines())} lines, where one tag belongs"
    if os.path.isabs(tag):
        return f"names an absolute path ({tag}), so DeepSpeed ignores the folder it was asked to load from"
    if ".." in tag.split("/"):
        return f"names a tag outside its folder ({tag})"
    if not (folder / tag).is_dir():
        return f"names a tag that is not there ({tag})"
    return None


def looks_like(folder: str | os.PathLike[str]) -> str:
    """What a folder without tags looks like, with the way to the right one; empty when it looks like nothing known.

    The text completes "the folder is ...", for messages about a load that finds nothing.
    """
    root = Path(folder)
    if not root.exists():
        return _absent(root)
    if not root.is_dir():
        role = layout.parse(root.name)
        return f"one file of the tag {root.parent.name}: pass {root.parent.parent}" if role else "a file, not a folder"
    if tag_info(root, root.name) is not None:
        return f"a tag folder, not a checkpoint folder: pass {root.parent} with the tag {root.name!r}"
    if (below := one_level_down(root)) is not None:
        return f"one level above a checkpoint folder: pass {below}"
    names = {entry.name for entry in _entries(root)}
    for marks, meaning in _OTHER_KINDS:
        if names & set(marks):
            return meaning
    if not names:
        return "empty"
    if any(name.endswith(".distcp") for name in names):
        return "a PyTorch Distributed Checkpoint (DCP) folder"
    return ""


def is_export(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds weights in a form for inference (Hugging Face, PEFT) and nothing of DeepSpeed."""
    names = {entry.name for entry in _entries(Path(folder))}
    return any(names & set(marks) for marks, _ in _OTHER_KINDS[:2]) and tag_info(Path(folder), "") is None


def _absent(root: Path) -> str:
    existing = next((parent for parent in root.parents if parent.is_dir()), None)
    if existing is None:
        return "not there"
    similar = sorted(entry.name for entry in _entries(existing) if _is_folder(entry))
    if not similar:
        return f"not there; {existing} holds no folder"
    return f"not there; {existing} holds {', '.join(similar[:5])}{' and more' if len(similar) > 5 else ''}"


def one_level_down(root: Path) -> Path | None:
    """The first folder in this one that is a checkpoint folder; None when there is none."""
    for child in _folders(root):
        if (child / layout.LATEST).is_file() or any(tag_info(inner, inner.name) for inner in _folders(child)):
            return child
    return None


def _is_universal(folder: Path) -> bool:
    """Whether ``zero/`` holds a folder for each parameter with its ``fp32.pt`` (written by ``ds_to_universal``)."""
    if (folder / "optimizer_state.pt").is_file():
        return True
    return any((child / "fp32.pt").is_file() for child in _folders(folder))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry, _ in zip(entries, range(_LOOK), strict=False)]
    except OSError:
        return []


def _folders(folder: Path) -> list[Path]:
    return sorted(Path(entry.path) for entry in _entries(folder) if _is_folder(entry))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _modified(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0
