"""Damage to checkpoint files, as disks, people and schedulers do it. All paths are of one tag folder."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def shard(folder: Path, dp_rank: int, mp_rank: int = 0) -> Path:
    """The optimizer shard of one rank, under whichever of DeepSpeed's names it has.

    Raises:
        FileNotFoundError: the tag folder has none.
    """
    found = sorted(folder.glob(f"*zero_pp_rank_{dp_rank}_mp_rank_{mp_rank:02d}_optim_states.pt"))
    if not found:
        raise FileNotFoundError(f"no optimizer shard of rank {dp_rank} in {folder}: {sorted(os.listdir(folder))}")
    return found[0]


def model_file(folder: Path, dp_rank: int = 0, mp_rank: int = 0) -> Path:
    """The model file that one rank reads (its own under ZeRO-3, a common one otherwise)."""
    own = folder / f"zero_pp_rank_{dp_rank}_mp_rank_{mp_rank:02d}_model_states.pt"
    return own if own.exists() else folder / f"mp_rank_{mp_rank:02d}_model_states.pt"


def flip_bit(path: Path, record: int | str = -1, position: float = 0.5, bit: int = 0) -> str:
    """Flip one bit in the data of a tensor record and leave the zip index, with its CRC, as it was.

    Args:
        record: name of a record; or an index into the tensor records, largest first for -1.
        position: where in the record, 0 to 1.
        bit: 0 (lowest) to 7.

    Returns:
        The name of the record.
    """
    with zipfile.ZipFile(path) as archive:
        tensors = [info for info in archive.infolist() if "/data/" in info.filename and info.file_size]
        if isinstance(record, str):
            chosen = archive.getinfo(record)
        else:
            chosen = max(tensors, key=lambda info: info.file_size) if record == -1 else tensors[record]
    offset = _data_offset(path, chosen) + int((chosen.file_size - 1) * position)
    with path.open("r+b") as handle:
        handle.seek(offset)
        byte = handle.read(1)[0]
        handle.seek(offset)
        handle.write(bytes([byte ^ (1 << bit)]))
    return chosen.filename


def cut(path: Path, keep: float = 0.5) -> None:
    """Keep only the first part of a file, as a full disk or an interrupted copy does."""
    os.truncate(path, int(path.stat().st_size * keep))


def empty(path: Path) -> None:
    """Leave a file of 0 bytes."""
    os.truncate(path, 0)


def remove(path: Path) -> None:
    """Delete a file."""
    path.unlink()


def swap_shards(folder: Path, one: int = 0, other: int = 1) -> None:
    """Exchange the shards of two ranks, names kept."""
    first, second = shard(folder, one), shard(folder, other)
    aside = first.with_suffix(".aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def take_shard_of(folder: Path, other_tag: Path, dp_rank: int = 0) -> None:
    """Put another tag's shard of the same rank in place."""
    shutil.copyfile(shard(other_tag, dp_rank), shard(folder, dp_rank))


def take_model_file_of(folder: Path, other_tag: Path, dp_rank: int = 0) -> None:
    """Put another tag's model file in place."""
    shutil.copyfile(model_file(other_tag, dp_rank), model_file(folder, dp_rank))


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Load a file, let ``change`` edit its tree in place, and save it: valid, with right CRCs, but other content.

    The file is one that the test wrote itself, so full unpickling is fine here.
    """
    tree = torch.load(path, map_location="cpu", weights_only=False)
    change(tree)
    torch.save(tree, path)


def set_tensor(
    path: Path,
    keys: tuple[Any, ...],
    change: Callable[[torch.Tensor], torch.Tensor],
    rewriting: Callable[[Path, Callable[[dict[str, Any]], None]], None] = rewrite,
) -> None:
    """Replace one tensor of a file by ``change`` of it, found by its key path.

    Args:
        rewriting: how the file is read and written.
    """

    def at_keys(tree: Any) -> None:
        for key in keys[:-1]:
            tree = tree[key]
        tree[keys[-1]] = change(tree[keys[-1]])

    rewriting(path, at_keys)


def saved_under(path: Path, name: str) -> None:
    """Write the same records anew, as if ``torch.save`` had been given another file name; "" stands for a file object."""
    reader, aside = torch._C.PyTorchFileReader(str(path)), path.with_name(name or "aside")
    with aside.open("wb") as handle:
        writer = torch._C.PyTorchFileWriter(str(aside) if name else handle)
        for record in reader.get_all_records():
            if record not in ("version", ".data/serialization_id"):  # the writer adds these
                data = reader.get_record(record)
                writer.write_record(record, data, len(data))
        writer.write_end_of_file()
    aside.replace(path)


def set_latest(folder: Path, text: str | bytes) -> None:
    """Write ``latest`` of a checkpoint folder."""
    (folder / "latest").write_bytes(text if isinstance(text, bytes) else text.encode())


def _data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Where the data of a stored record begins: behind its local header, whose lengths the central directory lacks."""
    with path.open("rb") as handle:
        handle.seek(info.header_offset + 26)
        lengths = handle.read(4)
    return info.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
