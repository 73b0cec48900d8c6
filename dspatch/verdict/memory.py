"""Bytes of live tensors: checksums on several threads, and comparison with bytes of a file, in pieces.

Everything here looks at a tensor as a flat run of bytes (``torch.uint8``), wherever it lives; what lies on an
accelerator comes over in pieces, so that at most ``THREADS_AT_MOST * PIECE`` bytes are held beside the training state.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

from dspatch.checkpoint.content import crc_combined, crc_of
from dspatch.verdict import progress

if TYPE_CHECKING:
    import torch

#: Bytes that one thread works on at a time.
PIECE = 16 << 20
THREADS_AT_MOST = 4

#: Below this many bytes, starting threads costs more than it saves.
_WORTH_THREADS = 8 << 20


def default_threads() -> int:
    """As many as there are cores for this process, at most 4: ranks share a machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return max(1, min(THREADS_AT_MOST, cores // max(1, local)))


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in the order of their indices, as bytes. A view when the tensor is contiguous, else a copy."""
    import torch

    # Elements that do not touch each other stay a view of their own kind through `reshape`.
    flat = tensor.detach().reshape(-1).contiguous()
    return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8, device=tensor.device)


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of the storage that a tensor looks at, as a view."""
    import torch

    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.detach().untyped_storage())


def buffer_of(run: torch.Tensor) -> memoryview:
    """The memory of a contiguous ``uint8`` tensor on the CPU. It must outlive the result."""
    size = run.numel()
    if not size:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * size).from_address(run.data_ptr())).cast("B")


def crc_of_runs(runs: Sequence[torch.Tensor], threads: int) -> list[int]:
    """CRC-32 of each run of bytes.

    Args:
        runs: from ``flat_bytes`` or ``storage_bytes``.
        threads: how many to use; large runs are cut into pieces whose checksums are put together again.
    """
    pieces = [(number, piece) for number, run in enumerate(runs) for piece in _cut(run)]
    progress.current.expect(sum(piece.numel() for _, piece in pieces))
    if threads > 1 and sum(piece.numel() for _, piece in pieces) >= _WORTH_THREADS:
        with ThreadPoolExecutor(min(threads, THREADS_AT_MOST)) as pool:
            sums = list(pool.map(_crc_of_piece, (piece for _, piece in pieces), chunksize=1))
    else:
        sums = [_crc_of_piece(piece) for _, piece in pieces]
    found = [0] * len(runs)
    for (number, piece), crc in zip(pieces, sums, strict=True):
        found[number] = crc_combined(found[number], crc, piece.numel())
    return found


def _cut(run: torch.Tensor) -> Iterator[torch.Tensor]:
    for start in range(0, run.numel(), PIECE):
        yield run[start : start + PIECE]


def _crc_of_piece(piece: torch.Tensor) -> int:
    here = piece.cpu()
    crc = crc_of(buffer_of(here))
    progress.current.add(piece.numel())
    return crc


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous runs of bytes on the CPU are equal. Releases the GIL; twice as fast as ``torch.equal``."""
    size = one.numel()
    return size == other.numel() and (not size or not _memcmp()(one.data_ptr(), other.data_ptr(), size))


@cache
def _memcmp() -> Callable[[int, int, int], int]:
    library = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
    compare = library.memcmp
    compare.argtypes, compare.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
    return compare


def first_difference(one: torch.Tensor, other: torch.Tensor) -> int:
    """Position of the first byte that differs, in runs of equal length."""
    import torch

    return int(torch.ne(one, other).to(torch.uint8).argmax())
