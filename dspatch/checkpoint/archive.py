"""The index of a ``.pt`` file: which records it holds, where their bytes lie and which CRC-32 they must have.

Since torch 1.6 a ``.pt`` file is a zip file of uncompressed records (``PyTorchStreamWriter``): ``NAME/data.pkl`` with
the object tree, and ``NAME/data/KEY`` for each tensor storage. The index at the end of the file carries name, size
and CRC-32 of every record, so it can be read in well under a millisecond whatever the file weighs, and without
touching tensor data.

The reader is strict: it accepts what torch writes and says what is wrong with anything else. ``zipfile`` forgives too
much for that: it skips leading and trailing bytes, takes overlapping and duplicate records, and unpacks compressed
ones.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from dspatch.checkpoint import structure
from dspatch.checkpoint.damage import Damaged
from dspatch.checkpoint.files import opened, read_exactly

#: The first pickled object of a file in torch's older, non-zip format (``MAGIC_NUMBER`` in torch/serialization.py).
LEGACY_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."

LOCAL_SIGNATURE = b"PK\x03\x04"

#: End of central directory, its zip64 form and the locator of that: APPNOTE.TXT 4.3.14 to 4.3.16.
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")

#: What the end record and its optional comment can take.
_TAIL = _END.size + 0xFFFF
_FIXED_TAIL = _END.size + _LOCATOR.size + _END64.size

#: A record needs an index entry of at least this size; torch files have a few records for each tensor of the model.
MOST_RECORDS = 2_000_000
_INDEX_LIMIT = 256 << 20

_STORED = 0
_ENCRYPTED = 0x1
_FULL32, _FULL16 = 0xFFFFFFFF, 0xFFFF


@dataclass(slots=True, eq=False)
class Record:
    """One stored record.

    Attributes:
        path: the file it lies in.
        name: its name without the archive's own folder: ``data.pkl``, ``data/0``.
        size: bytes.
        crc32: the checksum that the index promises; None in legacy files, which have none.
        stored_name: the name as written in the file.
        header: byte offset of the record's own header; None where there is no header (legacy files).
    """

    path: str
    name: str
    size: int
    crc32: int | None
    stored_name: str = ""
    header: int | None = None
    _offset: int | None = field(default=None, repr=False)

    @property
    def offset(self) -> int:
        """Absolute byte offset of the record's data in the file.

        It stands behind a header of variable length (torch pads it so that data is aligned), which is read on first
        use: the index alone answers most questions, and on shared storage each of these headers is a read of its own.

        Raises:
            Damaged: the header is not one, or belongs to another record.
        """
        if self._offset is None:
            with opened(self.path) as descriptor:
                return self.locate(descriptor)
        return self._offset

    def locate(self, descriptor: int) -> int:
        """``offset``, found through a descriptor of the opened file."""
        if self._offset is None:
            assert self.header is not None
            self._offset = _data_offset(self.path, self, os.pread(descriptor, self._header_size, self.header))
        return self._offset

    @property
    def _header_size(self) -> int:
        return _LOCAL.size + len(self.stored_name.encode())


class Archive:
    """The index of one zip-format ``.pt`` file.

    Attributes:
        path: the file.
        records: name (without the archive's own folder) -> ``Record``, in file order.
        folder: the archive's own folder, the first part of every stored name.
        size: bytes of the file.

    Raises:
        Damaged: the file cannot be read, is not a zip-format torch file, or breaks a rule that torch keeps.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with opened(self.path) as descriptor:
            self.size = os.fstat(descriptor).st_size
            self._index_at, entries = _read_index(self.path, descriptor, self.size)
        self.folder, self.records = _records(self.path, entries)

    @property
    def size_expected(self) -> int:
        """Bytes that the index implies. An ``Archive`` exists only when the file has exactly this size."""
        return self.size

    def read(self, name: str, limit: int | None = None) -> bytes:
        """The bytes of one record.

        Args:
            name: a key of ``records``.
            limit: refuse records that are larger, in bytes.

        Raises:
            Damaged: no such record, larger than ``limit``, or its own header is broken.
        """
        record = self.records.get(name)
        if record is None:
            raise Damaged(self.path, f"has no record {name!r}", "content")
        if limit is not None and record.size > limit:
            raise Damaged(self.path, f"has a record {name!r} of {record.size:,} bytes, more than {limit:,}", "limit")
        offset = record.offset
        with opened(self.path) as descriptor:
            return read_exactly(self.path, descriptor, record.size, offset)

    def check_structure(self) -> None:
        """Look at every byte of the file that is not tensor data: headers, padding, descriptors, end records.

        Tensor data has a CRC-32, the rest has not; but torch writes the rest in one way only, so a changed byte
        shows. One small read for each record.

        Raises:
            Damaged: something is not as torch writes it.
        """
        with opened(self.path) as descriptor:
            spans = [structure.Span(r.header or 0, r.stored_name, r.size, r.crc32 or 0) for r in self.records.values()]
            structure.check_gaps(self.path, descriptor, spans, self._index_at)
            tail = read_exactly(self.path, descriptor, self.size - self._index_at, self._index_at)
            structure.check_end(self.path, tail)


def is_legacy(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins like torch's older, non-zip format.

    Raises:
        Damaged: the file cannot be read.
    """
    with opened(os.fspath(path)) as descriptor:
        return os.pread(descriptor, len(LEGACY_MAGIC), 0) == LEGACY_MAGIC


@dataclass(slots=True)
class _Entry:
    """One line of the index, as written."""

    name: str
    flags: int
    method: int
    crc32: int
    packed: int
    size: int
    header: int


def _read_index(path: str, descriptor: int, size: int) -> tuple[int, list[_Entry]]:
    if size == 0:
        raise Damaged(path, "is empty (0 bytes)", "empty")
    if os.pread(descriptor, 4, 0) != LOCAL_SIGNATURE:
        raise _not_a_zip(path, descriptor)
    tail_start = max(0, size - _TAIL)
    # The end is nearly always at the very end; the long tail is only read when it is not there.
    tail = os.pread(descriptor, _FIXED_TAIL, max(0, size - _FIXED_TAIL))
    at = len(tail) - _END.size
    if at < 0 or tail[at : at + 4] != b"PK\x05\x06":
        raise _no_end(path, os.pread(descriptor, _TAIL, tail_start), tail_start, size)
    _, disk, start_disk, here, total, length, offset, comment = _END.unpack_from(tail, at)
    index_end = size - _END.size
    is_64 = tail[-_END.size - _LOCATOR.size :][:4] == b"PK\x06\x07"
    if is_64 or _FULL16 in (here, total) or _FULL32 in (length, offset):
        total, length, offset, index_end = _zip64_end(path, descriptor, tail, size)
    if comment or disk or start_disk:
        raise Damaged(path, "has an end record that torch does not write (comment or several disks)", "index")
    if offset + length != index_end:
        raise Damaged(path, f"has an index of {length:,} bytes at {offset:,} that ends elsewhere", "index")
    if total > MOST_RECORDS or length > _INDEX_LIMIT or length < total * _ENTRY.size:
        raise Damaged(path, f"claims {total:,} records in an index of {length:,} bytes", "hostile")
    return offset, list(_entries(path, os.pread(descriptor, length, offset), total, offset))


def _not_a_zip(path: str, descriptor: int) -> Damaged:
    head = os.pread(descriptor, 512, 0)
    if head.startswith(LEGACY_MAGIC):
        return Damaged(path, "is in torch's older, non-zip format and has no index", "legacy")
    if not head.strip(b"\0"):
        return Damaged(path, "begins with zeros: it was allocated, and its content was never written", "not torch")
    if head.startswith(b"PK\x05\x06"):
        return Damaged(path, "is a zip file without any record", "not torch")
    if head[:2] == b"\x80\x02" and LEGACY_MAGIC.startswith(head[: len(LEGACY_MAGIC)]):
        return Damaged(path, "is cut short inside its first bytes", "cut")
    if head.startswith(b"version https://git-lfs"):
        return Damaged(path, "is a Git LFS pointer: the real file was not downloaded (`git lfs pull`)", "not torch")
    return Damaged(path, f"is not a torch file (begins with {head[:8]!r})", "not torch")


def _no_end(path: str, tail: bytes, tail_start: int, size: int) -> Damaged:
    at = tail.rfind(b"PK\x05\x06")
    if at >= 0 and at + _END.size <= len(tail):
        comment = int.from_bytes(tail[at + _END.size - 2 : at + _END.size], "little")
        extra = size - (tail_start + at + _END.size + comment)
        if extra > 0:
            return Damaged(path, f"is over-long: {extra:,} bytes follow its end", "over-long")
        if extra == 0:
            return Damaged(path, "has an end record with a comment, which torch does not write", "index")
    return Damaged(path, f"is cut short: {size:,} bytes, and the index that belongs at the end is not there", "cut")


def _zip64_end(path: str, descriptor: int, tail: bytes, size: int) -> tuple[int, int, int, int]:
    """Number of records, length and offset of the index, and where it must end, from the zip64 end record."""
    locator_at = size - _END.size - _LOCATOR.size
    if locator_at < _END64.size:
        raise Damaged(path, "is too short for the zip64 index it announces", "index")
    signature, _, end_at, _ = _LOCATOR.unpack_from(tail, len(tail) - _END.size - _LOCATOR.size)
    if signature != b"PK\x06\x07" or not 0 <= end_at <= locator_at - _END64.size:
        raise Damaged(path, "has a broken zip64 locator", "index")
    found = _END64.unpack(os.pread(descriptor, _END64.size, end_at))
    if found[0] != b"PK\x06\x06" or end_at + 12 + found[1] != locator_at:
        raise Damaged(path, "has a broken zip64 end record", "index")
    return found[7], found[8], found[9], end_at


def _entries(path: str, index: bytes, total: int, limit: int) -> Iterator[_Entry]:
    at = 0
    for number in range(total):
        if at + _ENTRY.size > len(index) or index[at : at + 4] != b"PK\x01\x02":
            raise Damaged(path, f"has a broken index entry (number {number:,} of {total:,})", "index")
        fields = _ENTRY.unpack_from(index, at)
        flags, method, crc32, packed, size = fields[3], fields[4], fields[7], fields[8], fields[9]
        name_size, extra_size, comment_size, header = fields[10], fields[11], fields[12], fields[16]
        name_end = at + _ENTRY.size + name_size
        extra_end = name_end + extra_size
        if extra_end + comment_size > len(index):
            raise Damaged(path, f"has an index entry that runs over the end (number {number:,})", "index")
        name = index[name_end - name_size : name_end].decode("utf-8", "surrogateescape")
        if _FULL32 in (packed, size, header):
            size, packed, header = _zip64_sizes(path, index[name_end:extra_end], size, packed, header)
        if header + _LOCAL.size + name_size + packed > limit:
            raise Damaged(path, f"lists a record {_shown(name)} that would reach beyond its data", "index")
        yield _Entry(name, flags, method, crc32, packed, size, header)
        at = extra_end + comment_size
    if at != len(index):
        raise Damaged(path, f"has {len(index) - at:,} bytes in its index that belong to no record", "index")


def _zip64_sizes(path: str, extra: bytes, size: int, packed: int, header: int) -> tuple[int, int, int]:
    """Replace the fields that are full with the 64-bit values of the extra field 0x0001, which come in this order."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            values = [int.from_bytes(extra[k : k + 8], "little") for k in range(at + 4, at + 4 + length - 7, 8)]
            values.reverse()
            try:
                size = values.pop() if size == _FULL32 else size
                packed = values.pop() if packed == _FULL32 else packed
                header = values.pop() if header == _FULL32 else header
            except IndexError:
                break
            return size, packed, header
        at += 4 + length
    raise Damaged(path, "has an index entry without the 64-bit sizes it announces", "index")


def _records(path: str, entries: list[_Entry]) -> tuple[str, dict[str, Record]]:
    if not entries:
        raise Damaged(path, "is a zip file without any record", "not torch")
    folder = entries[0].name.partition("/")[0]
    records: dict[str, Record] = {}
    for entry in entries:
        _refuse(path, entry, folder)
        name = entry.name[len(folder) + 1 :]
        if name in records:
            raise Damaged(path, f"holds two records of the name {_shown(entry.name)}", "hostile")
        records[name] = Record(path, name, entry.size, entry.crc32, entry.name, entry.header)
    if "data.pkl" not in records:
        raise Damaged(path, "is a zip file without a data.pkl record: not written by torch.save", "not torch")
    spans = sorted((one.header, _LOCAL.size + len(one.name.encode("utf-8", "surrogateescape")) + one.size, one.name)
                   for one in entries)  # fmt: skip
    if spans[0][0] != 0:
        raise Damaged(path, f"begins with {spans[0][0]:,} bytes that belong to no record", "hostile")
    _refuse_overlap(path, spans)
    return folder, records


def _refuse(path: str, entry: _Entry, folder: str) -> None:
    parts = entry.name.split("/")
    if (
        len(parts) < 2 or parts[0] != folder or not folder or any(part in ("", ".", "..") for part in parts)
        or "\\" in entry.name or not entry.name.isprintable()
    ):  # fmt: skip
        raise Damaged(path, f"holds a record named {_shown(entry.name)}: a path out of its folder", "hostile")
    if entry.flags & _ENCRYPTED:
        raise Damaged(path, f"holds an encrypted record {_shown(entry.name)}", "hostile")
    if entry.method != _STORED or entry.packed != entry.size:
        raise Damaged(path, f"holds a compressed record {_shown(entry.name)}; torch never compresses", "hostile")


def _refuse_overlap(path: str, spans: list[tuple[int, int, str]]) -> None:
    for (start, size, name), following in pairwise(spans):
        if start + size > following[0]:
            raise Damaged(path, f"holds records that overlap ({_shown(name)} and {_shown(following[2])})", "hostile")


def _data_offset(path: str, record: Record, head: bytes) -> int:
    assert record.header is not None
    wanted = record.stored_name.encode("utf-8", "surrogateescape")
    if len(head) < _LOCAL.size or head[:4] != LOCAL_SIGNATURE:
        raise Damaged(path, f"has no record header where {_shown(record.stored_name)} should begin", "index")
    fields = _LOCAL.unpack_from(head)
    if fields[9] != len(wanted) or head[_LOCAL.size :] != wanted:
        raise Damaged(path, f"names another record where {_shown(record.stored_name)} should begin", "index")
    return record.header + _LOCAL.size + int(fields[9]) + int(fields[10])


def _shown(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:77] + "...")
