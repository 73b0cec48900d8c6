"""The bytes of a ``.pt`` file around its data: what torch puts there, to the byte.

A record's data has a CRC-32; its header, the padding that aligns it, the descriptor behind it and the end of the file
have none. ``PyTorchStreamWriter`` writes all of these in one way, and equally for every record, so a change in them
shows too.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from dspatch.checkpoint.damage import Damaged

_LOCAL = struct.Struct("<4s5H3L2H")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_ZIP64_END = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_END = struct.Struct("<4s4H2LH")

_DESCRIPTOR = 0x8
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF

#: What miniz, torch's zip writer, puts into the version fields of a zip64 end record.
_ZIP64_VERSIONS = (0x031E, 0x002D)


class Span(NamedTuple):
    """A record as the index describes it: position of its header, stored name, size and checksum of its data."""

    header: int
    name: str
    size: int
    crc32: int


def check_gaps(path: str, descriptor: int, spans: list[Span], end: int) -> None:
    """Check everything between the data of one record and the data of the next, up to the index at ``end``.

    Raises:
        Damaged: a byte is not what torch writes there.
    """
    ordered = sorted(spans)
    seen: dict[bool, tuple[int, ...]] = {}
    ends = [*(one.header for one in ordered[1:]), end]
    for span, following in zip(ordered, ends, strict=True):
        name = span.name.encode()
        head = os.pread(descriptor, _LOCAL.size + len(name), span.header)
        if len(head) < _LOCAL.size + len(name) or head[:4] != b"PK\x03\x04" or head[_LOCAL.size :] != name:
            raise _changed(path, span, "its header")
        fields = _LOCAL.unpack_from(head)
        # Version, flags, method, time and date are the same in every record that one writer wrote; those of empty
        # records differ in the flag that announces a descriptor.
        common = seen.setdefault(span.size == 0, fields[1:6])
        sizes = _sizes(span, bool(fields[2] & _DESCRIPTOR))
        if fields[1:6] != common or fields[9] != len(name) or fields[6:9] not in sizes:
            raise _changed(path, span, "its header")
        data = span.header + _LOCAL.size + len(name) + fields[10]
        padding = os.pread(descriptor, fields[10], span.header + _LOCAL.size + len(name))
        if not _is_padding(padding, span):
            raise _changed(path, span, "the padding in front of it")
        behind = os.pread(descriptor, max(0, min(following - data - span.size, 64)), data + span.size)
        wanted = _descriptors(span, bool(fields[2] & _DESCRIPTOR))
        if data + span.size + len(behind) != following or behind not in wanted:
            raise _changed(path, span, "what follows it")


def check_end(path: str, tail: bytes) -> None:
    """Check the index and the end records for fields that no reader looks at.

    Args:
        tail: the file from the beginning of its index on.

    Raises:
        Damaged: a field is not what torch writes there.
    """
    at, number = 0, 0
    seen: dict[bool, tuple[int, ...]] = {}
    while tail[at : at + 4] == b"PK\x01\x02":
        fields = _ENTRY.unpack_from(tail, at)
        alike = (*fields[1:7], *fields[12:16])
        common = seen.setdefault(fields[9] == 0, alike)
        size, packed, header = fields[9], fields[8], fields[16]
        extra = tail[at + _ENTRY.size + fields[10] : at + _ENTRY.size + fields[10] + fields[11]]
        full = (size, packed, header).count(_FULL32)
        wanted = 4 + 8 * full if full else 0
        if alike != common or len(extra) != wanted or (full and extra[:4] != struct.pack("<2H", 1, 8 * full)):
            raise Damaged(path, f"has a changed index entry (number {number:,})", "index")
        at += _ENTRY.size + fields[10] + fields[11] + fields[12]
        number += 1
    _check_end_records(path, tail[at:], number, at)


def _check_end_records(path: str, rest: bytes, number: int, length: int) -> None:
    if len(rest) > _END.size:
        end64, locator = _ZIP64_END.unpack_from(rest), _LOCATOR.unpack_from(rest, _ZIP64_END.size)
        same = end64[1:6] == (44, *_ZIP64_VERSIONS, 0, 0) and end64[6] == end64[7] == number
        if not same or end64[8] != length or locator[1] != 0 or locator[3] != 1:
            raise Damaged(path, "has a changed end record", "index")
    end = _END.unpack_from(rest, len(rest) - _END.size)
    if end[3] != end[4] or end[4] not in (number, _FULL16) or end[5] not in (length, _FULL32):
        raise Damaged(path, "has a changed end record", "index")
    if len(rest) > _END.size and end[6] not in (_ZIP64_END.unpack_from(rest)[9], _FULL32):
        raise Damaged(path, "has a changed end record", "index")


def _sizes(span: Span, later: bool) -> tuple[tuple[int, int, int], ...]:
    """Checksum and sizes that a header may show: zeros when a descriptor follows, else the real ones."""
    if later:
        return ((0, 0, 0), (0, _FULL32, _FULL32))
    return ((span.crc32, span.size, span.size), (span.crc32, _FULL32, _FULL32))


def _is_padding(extra: bytes, span: Span) -> bool:
    """``FB``, a length and as many ``Z``; in front of it, for large records, the 64-bit sizes."""
    if extra[:2] == b"\x01\x00" and len(extra) >= 4:
        length = int.from_bytes(extra[2:4], "little")
        sizes = extra[4 : 4 + length]
        if len(sizes) != length or (sizes.strip(b"\0") and struct.pack("<Q", span.size) not in sizes):
            return False
        extra = extra[4 + length :]
    if not extra:
        return True
    if len(extra) < 4 or extra[:2] != b"FB":
        return False
    return int.from_bytes(extra[2:4], "little") == len(extra) - 4 and not extra[4:].strip(b"Z")


def _descriptors(span: Span, expected: bool) -> tuple[bytes, ...]:
    if not expected:
        return (b"",)
    return (
        struct.pack("<4sLLL", b"PK\x07\x08", span.crc32, span.size & _FULL32, span.size & _FULL32),
        struct.pack("<4sLQQ", b"PK\x07\x08", span.crc32, span.size, span.size),
    )


def _changed(path: str, span: Span, what: str) -> Damaged:
    return Damaged(path, f"was changed after it was written: {what} is not as torch writes it ({span.name})", "index")
