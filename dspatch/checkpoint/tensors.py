"""Tensors as a file describes them: where their bytes lie, no bytes read, no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dspatch.checkpoint.archive import Record

#: Bytes of one element, by dtype name (``torch.float32`` is ``"float32"``).
ITEMSIZE = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "uint16": 2, "uint32": 4, "uint64": 8,
    "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "qint8": 1, "quint8": 1, "qint32": 4, "quint4x2": 1, "quint2x4": 1,
}  # fmt: skip

#: torch storage class -> dtype; ``UntypedStorage`` has none of its own (``uint8`` counts its bytes).
STORAGE_DTYPES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "QInt8Storage": "qint8", "QUInt8Storage": "quint8",
    "QInt32Storage": "qint32", "QUInt4x2Storage": "quint4x2", "QUInt2x4Storage": "quint2x4",
    "UntypedStorage": "uint8",
}  # fmt: skip


@dataclass(slots=True, eq=False)
class StorageRef:
    """A storage: one run of bytes in the file that one or several tensors look at.

    Attributes:
        record: where its bytes lie.
        dtype: dtype of its elements.
        numel: elements.
        location: the device it was on, as torch wrote it (``cpu``, ``cuda:0``).
    """

    record: Record
    dtype: str
    numel: int
    location: str


@dataclass(slots=True, eq=False)
class TensorRef:
    """A tensor in a file. Two refs are the same only when they are the same object; compare their fields.

    Attributes:
        path: the file.
        storage: the storage it looks at.
        dtype: such as ``"bfloat16"``.
        shape: elements along each dimension.
        stride: elements between neighbours along each dimension.
        storage_offset: elements of the storage in front of the first one.
        requires_grad: as saved.
    """

    path: str
    storage: StorageRef
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int
    requires_grad: bool = False

    @property
    def record(self) -> Record:
        """The record that holds the storage."""
        return self.storage.record

    @property
    def storage_numel(self) -> int:
        """Elements of the tensor's dtype that the storage holds."""
        return self.storage.record.size // self.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return ITEMSIZE[self.dtype]

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.numel * self.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one after the other in the order of the indices."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size == 0:
                return True
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def is_whole_record(self) -> bool:
        """Whether the tensor's bytes are exactly the record's bytes, so that the record's CRC-32 is the tensor's."""
        return self.storage_offset == 0 and self.nbytes == self.record.size and self.is_contiguous

    @property
    def offset(self) -> int:
        """Absolute byte offset of the first element in the file. Reads the record's header on first use."""
        return self.record.offset + self.storage_offset * self.itemsize
