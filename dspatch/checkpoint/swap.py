"""Swap files of the NVMe offload inside a tag: raw elements without an index or a checksum.

``DeepSpeedEngine.save_checkpoint`` copies each rank's swap folder to ``offloaded_tensors/rankNN`` of the tag, in older
releases to ``offloaded_tensors`` itself. A file holds the elements of one flat tensor, filled up to a multiple of the
block size of the storage (``OptimizerSwapper._io_aligned_numel``); ``ID.tensor.swp`` has masters,
``KEY-ID.tensor.swp`` the moments of that key.
"""

from __future__ import annotations

import os
from pathlib import Path

from dspatch.checkpoint.archive import Record
from dspatch.checkpoint.damage import Damaged
from dspatch.checkpoint.layout import OFFLOADED
from dspatch.checkpoint.tensors import ITEMSIZE, StorageRef, TensorRef


def path_in(tag_folder: Path, rank: int, name: str) -> Path | None:
    """Where a tag holds a rank's swap file; None where it has none of that name."""
    for place in (tag_folder / OFFLOADED / f"rank{rank:02d}" / name, tag_folder / OFFLOADED / name):
        if place.is_file():
            return place
    return None


def tensor_in(path: Path, dtype: str, numel: int) -> TensorRef:
    """The elements of a swap file as a tensor; what fills up the last block is left out.

    Args:
        path: of the file.
        dtype: such as ``"float32"``; the file does not say.
        numel: elements; the file does not say either.

    Raises:
        Damaged: the file holds fewer.
    """
    size = numel * ITEMSIZE[dtype]
    short = size - os.stat(path).st_size
    if short > 0:
        raise Damaged(str(path), f"ends {short:,} bytes too early", "cut")
    storage = StorageRef(Record(str(path), path.name, size, None, _offset=0), dtype, numel, "cpu")
    return TensorRef(str(path), storage, dtype, (numel,), (1,), 0)
