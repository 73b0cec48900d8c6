"""How far two runs of elements lie apart: a few sums, put together piece by piece.

Bytes are compared as bytes; only runs that differ are decoded. numpy is used where it is installed, since the standard
library needs about a hundred times as long for the same sums; it is no dependency.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import mul
from types import ModuleType
from typing import Any, Literal

from dspatch.checkpoint.tensors import ITEMSIZE

#: dtypes whose values are decoded, with their sizes; elements of others are compared as bytes only.
KNOWN = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
         "bool": 1}  # fmt: skip
#: dtype -> code of ``array``.
_CODES = {
    "float32": "f",
    "float64": "d",
    "int64": "q",
    "int32": "i",
    "int16": "h",
    "int8": "b",
    "uint8": "B",
    "bool": "B",
}
_WORDS: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


@dataclass(slots=True)
class Apart:
    """What is known of two runs of the same number of elements.

    Attributes:
        elements: seen so far.
        differing: elements whose bytes differ (whose values differ, between two dtypes).
        first: index of the first of them; None without.
        largest: largest absolute difference of two finite values; None where values were not looked at.
        at: index of it.
        not_finite: elements of the first and of the second run that are NaN or infinite.
        sums: of both, of their squares, and of their products, over pairs of finite values: a, b, aa, bb, ab.
        finite: number of such pairs.
    """

    elements: int = 0
    differing: int = 0
    first: int | None = None
    largest: float | None = None
    at: int | None = None
    not_finite: list[int] = field(default_factory=lambda: [0, 0])
    sums: list[float] = field(default_factory=lambda: [0.0] * 5)
    finite: int = 0

    @property
    def norms(self) -> tuple[float, float]:
        """Euclidean norms of both, over pairs of finite values."""
        return math.sqrt(self.sums[2]), math.sqrt(self.sums[3])

    @property
    def spreads(self) -> tuple[float, float, float]:
        """Variances of both and their covariance, each times the number of pairs."""
        a, b, aa, bb, ab = self.sums
        count = max(self.finite, 1)
        return max(aa - a * a / count, 0.0), max(bb - b * b / count, 0.0), ab - a * b / count


def same(one: memoryview, other: memoryview) -> bool:
    """Whether two buffers hold the same bytes."""
    # A comparison of memoryviews goes element by element; one of bytearrays is a memcmp.
    return bytearray(one) == other


def add(apart: Apart, one: memoryview, other: memoryview, dtypes: tuple[str, str], at: int | None = None) -> None:
    """Take in the next elements of two runs.

    Args:
        apart: what was found so far.
        one, other: bytes of the same number of elements, little-endian.
        dtypes: of both.
        at: index of the first of them; None: they follow what was seen before.
    """
    begin = apart.elements if at is None else at
    numpy = _numpy()
    if not (dtypes[0] in KNOWN and dtypes[1] in KNOWN):
        _add_bytes(apart, one, other, ITEMSIZE[dtypes[0]], begin)
    elif numpy is not None:
        _add_quickly(apart, one, other, dtypes, numpy, begin)
    else:
        _add_plainly(apart, one, other, dtypes, begin)


def _add_bytes(apart: Apart, one: memoryview, other: memoryview, size: int, begin: int) -> None:
    count = len(one) // size
    for at in range(count):
        if one[at * size : (at + 1) * size] != other[at * size : (at + 1) * size]:
            _differs(apart, begin + at, 1)
    apart.elements += count


def _differs(apart: Apart, at: int, count: int) -> None:
    apart.differing += count
    if apart.first is None:
        apart.first = at


def _add_plainly(apart: Apart, one: memoryview, other: memoryview, dtypes: tuple[str, str], begin: int) -> None:
    a, b = decoded(one, dtypes[0]), decoded(other, dtypes[1])
    size = KNOWN[dtypes[0]]
    x, y = (one.cast(_WORDS[size]), other.cast(_WORDS[size])) if dtypes[0] == dtypes[1] else (a, b)
    unequal = [at for at, (this, that) in enumerate(zip(x, y, strict=True)) if this != that]
    if unequal:
        _differs(apart, begin + unequal[0], len(unequal))
    for at in unequal:
        gap = abs(a[at] - b[at])
        if (apart.largest is None or gap > apart.largest) and math.isfinite(gap):
            apart.largest, apart.at = gap, begin + at
    for side, numbers in enumerate((a, b)):
        apart.not_finite[side] += sum(not math.isfinite(x) for x in numbers)
    if not all(map(math.isfinite, a)) or not all(map(math.isfinite, b)):
        pairs = [(x, y) for x, y in zip(a, b, strict=True) if math.isfinite(x) and math.isfinite(y)]
        a, b = [x for x, _ in pairs], [y for _, y in pairs]
    found = (math.fsum(a), math.fsum(b), _dot(a, a), _dot(b, b), _dot(a, b))
    apart.sums = [x + y for x, y in zip(apart.sums, found, strict=True)]
    apart.finite += len(a)
    apart.elements += len(one) // size


def _dot(one: Iterable[float], other: Iterable[float]) -> float:
    return math.fsum(map(mul, one, other))


def decoded(raw: memoryview, dtype: str) -> Sequence[float]:
    """The values of elements."""
    if dtype == "float16":
        return struct.unpack(f"<{len(raw) // 2}e", raw)
    if dtype == "bfloat16":
        # The upper half of a float32.
        wide = bytearray(len(raw) * 2)
        wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
        return array("f", bytes(wide))
    return array(_CODES[dtype], bytes(raw))


def _add_quickly(
    apart: Apart, one: memoryview, other: memoryview, dtypes: tuple[str, str], numpy: ModuleType, begin: int
) -> None:
    def dot(x: Any, y: Any) -> float:
        return float(numpy.einsum("i,i", x, y))

    a, b = _array(one, dtypes[0], numpy), _array(other, dtypes[1], numpy)
    if dtypes[0] == dtypes[1]:
        words = f"<u{KNOWN[dtypes[0]]}"
        unequal = numpy.frombuffer(one, words) != numpy.frombuffer(other, words)
    else:
        unequal = a != b
    # Not `a @ a`: for runs this short the threads of a BLAS cost a hundred times what they do.
    squares, finite = (dot(a, a), dot(b, b)), int(a.size)
    if not all(map(math.isfinite, squares)):
        fine_a, fine_b = numpy.isfinite(a), numpy.isfinite(b)
        fine = fine_a & fine_b
        finite = int(numpy.count_nonzero(fine))
        apart.not_finite[0] += int(a.size - numpy.count_nonzero(fine_a))
        apart.not_finite[1] += int(b.size - numpy.count_nonzero(fine_b))
        a, b = numpy.where(fine, a, 0.0), numpy.where(fine, b, 0.0)
        squares = (dot(a, a), dot(b, b))
        counted = unequal & fine
    else:
        counted = unequal
    count = int(numpy.count_nonzero(unequal))
    if count:
        _differs(apart, begin + int(unequal.argmax()), count)
        gaps = a - b
        numpy.abs(gaps, out=gaps)
        at = int(gaps.argmax())
        if not counted[at]:  # nothing differs in value, but -0.0 and 0.0 may
            at = int(counted.argmax())
        if counted[at] and (apart.largest is None or gaps[at] > apart.largest):
            apart.largest, apart.at = float(gaps[at]), begin + at
    found = (a.sum(), b.sum(), *squares, dot(a, b))
    apart.sums = [x + float(y) for x, y in zip(apart.sums, found, strict=True)]
    apart.finite += finite
    apart.elements += int(a.size)


def _array(raw: memoryview, dtype: str, numpy: ModuleType) -> Any:
    if dtype == "bfloat16":
        wide = numpy.frombuffer(raw, "<u2").astype("<u4") << 16
        made = wide.view("<f4")
    else:
        made = numpy.frombuffer(raw, "float16" if dtype == "float16" else _CODES[dtype])
    return made.astype("f8")


@cache
def _numpy() -> ModuleType | None:
    try:
        import numpy
    except ImportError:
        return None
    return numpy
