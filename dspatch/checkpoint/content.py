"""Bytes and checksums of what a file holds, straight from the file, in pieces of constant size.

(The name ``bytes`` would hide the built-in of that name wherever this module is imported.)
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from dspatch.checkpoint.archive import Record
from dspatch.checkpoint.damage import Damaged
from dspatch.checkpoint.files import opened, read_into
from dspatch.checkpoint.tensors import TensorRef

#: Bytes read at once: fits the second-level cache, so that a checksum finds them there.
CHUNK = 1 << 20

Buffer = bytes | bytearray | memoryview


def crc_of(buffer: Buffer, start: int = 0) -> int:
    """CRC-32 of a contiguous buffer, as zip files use it; releases the GIL for large ones.

    Args:
        buffer: anything with the buffer protocol, contiguous.
        start: the checksum of what came before, to go on from there.
    """
    return _fastest_crc32()(buffer, start)


def crc_combined(first: int, second: int, length: int) -> int:
    """CRC-32 of two runs of bytes after each other, from the checksum of each.

    Args:
        first: of the first run.
        second: of the second run.
        length: bytes of the second run.
    """
    # Zero bytes behind the first run are a linear map of its register, and 2 ** n of them are that map squared n times:
    # zlib's crc32_combine, which Python does not have before 3.15.
    bit = 0
    while length >> bit:
        if length >> bit & 1:
            first = _times(_zero_bytes(bit), first)
        bit += 1
    return first ^ second


@cache
def _zero_bytes(power: int) -> tuple[int, ...]:
    """What ``2 ** power`` zero bytes do to the register: a matrix over bits, a row for each bit."""
    if power:
        return _squared(_zero_bytes(power - 1))
    one_bit = (0xEDB88320, *(1 << bit for bit in range(31)))
    return _squared(_squared(_squared(one_bit)))


def _times(matrix: tuple[int, ...], vector: int) -> int:
    total = 0
    for row in matrix:
        if not vector:
            break
        if vector & 1:
            total ^= row
        vector >>= 1
    return total


def _squared(matrix: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(_times(matrix, row) for row in matrix)


@cache
def crc_of_zeros(size: int) -> int:
    """CRC-32 of ``size`` bytes that are all zero."""
    crc, block = 0, bytes(min(size, CHUNK))
    for done in range(0, size, CHUNK):
        crc = crc_of(memoryview(block)[: min(CHUNK, size - done)], crc)
    return crc


@cache
def _fastest_crc32() -> Callable[[Any, int], int]:
    try:
        from zlib_ng import zlib_ng
    except ImportError:  # no wheel for this platform: the same values from the standard library, 5 to 8 times slower
        return zlib.crc32
    found: Callable[[Any, int], int] = zlib_ng.crc32
    return found


def read_bytes(ref: TensorRef, start: int = 0, count: int | None = None) -> memoryview:
    """Elements of a contiguous tensor, as bytes.

    Args:
        ref: the tensor.
        start: first element, in the order of the indices.
        count: how many; None: up to the last.

    Returns:
        A view of ``count * ref.itemsize`` bytes, writable, owned by nobody else.

    Raises:
        ValueError: the tensor is not contiguous, or has fewer elements.
        Damaged: the file ends before or cannot be read.
    """
    wanted = ref.numel - start if count is None else count
    if not ref.is_contiguous:
        raise ValueError(f"a tensor of shape {ref.shape} and strides {ref.stride} is not contiguous")
    if start < 0 or wanted < 0 or start + wanted > ref.numel:
        raise ValueError(f"elements {start} to {start + wanted} of a tensor that has {ref.numel}")
    buffer = memoryview(bytearray(wanted * ref.itemsize))
    if wanted:
        with opened(ref.path) as descriptor:
            read_into(ref.path, descriptor, buffer, ref.offset + start * ref.itemsize)
    return buffer


def pieces(ref: TensorRef, start: int = 0, count: int | None = None, chunk: int = CHUNK) -> Iterator[memoryview]:
    """The same bytes in pieces of whole elements, at most ``chunk`` bytes each; the next piece overwrites the last."""
    wanted = ref.numel - start if count is None else count
    if not ref.is_contiguous or start < 0 or wanted < 0 or start + wanted > ref.numel:
        raise ValueError(f"elements {start} to {start + wanted} of a tensor of shape {ref.shape}, strides {ref.stride}")
    if wanted:
        step = max(1, chunk // ref.itemsize) * ref.itemsize
        yield from _pieces(ref.path, ref.offset + start * ref.itemsize, wanted * ref.itemsize, step)


def crc_of_tensor(ref: TensorRef, start: int = 0, count: int | None = None) -> int:
    """CRC-32 of elements of a contiguous tensor, read from the file with constant memory."""
    crc = 0
    for piece in pieces(ref, start, count):
        crc = crc_of(piece, crc)
    return crc


def crc_of_record(record: Record, progress: Callable[[int], object] | None = None) -> int:
    """CRC-32 of a record's bytes as they are in the file now, read with constant memory.

    Args:
        record: from an ``Archive`` or a ``Tree``.
        progress: called with the number of bytes just covered; what it raises stops the work.

    Raises:
        Damaged: the file ends before or cannot be read.
    """
    crc = 0
    for piece in _pieces(record.path, record.offset, record.size, CHUNK):
        crc = crc_of(piece, crc)
        if progress is not None:
            progress(len(piece))
    return crc


def crc_of_run(
    path: str, descriptor: int, offset: int, length: int, buffer: memoryview,
    look: Callable[[memoryview], object] | None = None,
) -> int:  # fmt: skip
    """CRC-32 of a run of bytes of an opened file, for who reads all of it: the loop has next to no Python in it.

    Args:
        path: of the file, for messages.
        descriptor: of the opened file.
        offset, length: of the run, in bytes.
        buffer: for the pieces, kept by the caller: new memory costs as much as reading does. One that fits the second-level
            cache twice is fastest, since what is read lies there a second time, as the page that it comes from.
        look: called with each piece while it is in the cache; what it raises ends the work.

    Raises:
        Damaged: the file ends before or cannot be read.
    """
    crc32, preadv, size = _fastest_crc32(), os.preadv, len(buffer)
    crc, end, into = 0, offset + length, [buffer]
    for at in range(offset, end, size):
        piece = buffer
        if end - at < size:
            piece = buffer[: end - at]
            into = [piece]
        try:
            complete = preadv(descriptor, into, at) == len(piece)
        except OSError:
            complete = False
        if not complete:
            read_into(path, descriptor, piece, at)  # the rest, or what is wrong
        crc = crc32(piece, crc)
        if look is not None:
            look(piece)
    return crc


def check_record(record: Record, progress: Callable[[int], object] | None = None) -> None:
    """Raise ``Damaged`` (kind ``crc``) when a record's bytes are not those that were written."""
    if record.crc32 is not None and crc_of_record(record, progress) != record.crc32:
        raise Damaged(record.path, f"was changed after it was written: the checksum of {record.name} differs", "crc")


def _pieces(path: str, offset: int, size: int, chunk: int) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(min(chunk, size)))
    with opened(path) as descriptor:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_SEQUENTIAL)
        for done in range(0, size, chunk):
            piece = buffer[: min(chunk, size - done)]
            read_into(path, descriptor, piece, offset + done)
            yield piece


def scalar(ref: TensorRef) -> float | None:
    """The value of a tensor with one element (optimizers keep their step in one), or None for more elements.

    A CRC-32 of four bytes is reversible, so for four-byte dtypes in a record of their own the index alone tells the
    value and no tensor data is read.
    """
    if ref.numel != 1 or ref.dtype not in _SCALARS:
        return None
    code = _SCALARS[ref.dtype]
    if ref.is_whole_record and ref.itemsize == 4 and ref.record.crc32 is not None:
        raw = _four_bytes(ref.record.crc32)
    else:
        raw = bytes(read_bytes(ref, 0, 1))
    if ref.dtype == "bfloat16":
        raw = b"\0\0" + raw
    value: float = struct.unpack("<" + code, raw)[0]
    return value


_SCALARS = {"float32": "f", "float64": "d", "float16": "e", "bfloat16": "f", "int32": "i", "int64": "q", "uint8": "B"}


def _four_bytes(crc: int) -> bytes:
    """The four bytes that have this CRC-32: the register's way back, bit by bit, from the end to the start value."""
    register = crc ^ 0xFFFFFFFF
    for _ in range(32):
        register = ((register ^ 0xEDB88320) << 1 | 1) if register & 0x80000000 else register << 1
    return ((register ^ 0xFFFFFFFF) & 0xFFFFFFFF).to_bytes(4, "little")
