"""Values of masters and moments as they stream by: NaN and infinity, all zero, and how large they are.

With numpy one pass over data that the checksum has just brought into the cache, and none of it under the GIL; without
numpy the standard library finds the same, more slowly.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any

#: dtype -> (bytes, mask of the exponent in the whole element, code of ``struct``).
_FORMS = {
    "float64": (8, 0x7FF0_0000_0000_0000, "Q"),
    "float32": (4, 0x7F80_0000, "I"),
    "bfloat16": (2, 0x7F80, "H"),
    "float16": (2, 0x7C00, "H"),
}
#: Elements of each tensor whose magnitudes are counted.
_SAMPLE = 1024

#: First and last-plus-one element of a run that belongs to parameters.
Run = tuple[int, int]


class Scan:
    """Looks at one tensor, piece by piece, in order.

    Args:
        dtype: of the tensor.
        runs: gives the elements that belong to parameters, in order, or None for all; asked only when something is wrong
            with one. Padding is uninitialised memory at times.
        start: index of the first element that will be fed.

    Attributes:
        bad: number of elements that are NaN or infinite.
        first_bad: index of the first of them; None without.
        zero: every element seen so far is 0.
        magnitudes: exponent to the base of 2 -> how many elements of a sample have it.
    """

    def __init__(
        self, dtype: str, runs: Callable[[], Sequence[Run] | None] | None = None, start: int = 0
    ) -> None:
        self._size, self._mask, self._code = _FORMS[dtype]
        self._dtype, self._ask_runs = dtype, runs
        self._at, self._numpy = start, _numpy()
        self._viewed: memoryview | None = None
        self._values: Any = None
        self.bad = 0
        self.first_bad: int | None = None
        self.zero = True
        self.magnitudes: Counter[int] = Counter()

    def add(self, other: Scan) -> None:
        """Take in what another scan has seen of the same tensor."""
        self.bad += other.bad
        seen = [one for one in (self.first_bad, other.first_bad) if one is not None]
        self.first_bad = min(seen, default=None)
        self.zero = self.zero and other.zero
        self.magnitudes.update(other.magnitudes)

    @staticmethod
    def knows(dtype: str) -> bool:
        """Whether elements of this dtype can be looked at."""
        return dtype in _FORMS

    def feed(self, piece: memoryview) -> None:
        """Look at the next piece; it holds whole elements."""
        if self._at == 0:
            self._measure(piece[: _SAMPLE * self._size])
        numpy = self._numpy
        if self._quick(piece, numpy) if numpy is not None else self._plain(piece):
            self._count(piece)
        self._at += len(piece) // self._size

    def _quick(self, piece: memoryview, numpy: ModuleType) -> bool:
        if self._size >= 4:
            if piece is not self._viewed:
                self._viewed, self._values = piece, numpy.frombuffer(piece, self._dtype)
            # A sum is not finite when an element is not, in one pass for both signs; the sum of very large ones may not be,
            # too, and then counting finds none. einsum adds as fast as memory gives.
            total = float(numpy.einsum("i->", self._values))
            if self.zero:
                self.zero = total == 0 and not self._values.any()
            return total - total != 0
        bits = numpy.frombuffer(piece, numpy.uint16) & numpy.uint16(0x7FFF)
        largest = int(numpy.maximum.reduce(bits))
        self.zero = self.zero and largest == 0
        return largest >= self._mask

    def _plain(self, piece: memoryview) -> bool:
        raw = bytes(piece)
        if self.zero and raw.strip(b"\0"):
            # -0.0 is zero, too.
            self.zero = not any(raw[self._size - 1 :: self._size].translate(None, b"\0\x80")) and not any(
                any(raw[at :: self._size]) for at in range(self._size - 1)
            )
        high = raw[self._size - 1 :: self._size]
        if self._dtype == "float16":
            return any(byte in high for byte in (0x7C, 0x7D, 0x7E, 0x7F, 0xFC, 0xFD, 0xFE, 0xFF))
        return 0x7F in high or 0xFF in high

    def _count(self, piece: memoryview) -> None:
        runs = self._ask_runs() if self._ask_runs is not None else None
        for index, (bits,) in enumerate(struct.iter_unpack(f"<{self._code}", piece)):
            if bits & self._mask == self._mask and _belongs(runs, self._at + index):
                self.bad += 1
                if self.first_bad is None:
                    self.first_bad = self._at + index

    def _measure(self, piece: memoryview) -> None:
        bits = 11 if self._dtype == "float64" else 5 if self._dtype == "float16" else 8
        shift = self._size * 8 - 1 - bits
        middle = (1 << (bits - 1)) - 1
        for (value,) in struct.iter_unpack(f"<{self._code}", piece):
            exponent = (value >> shift) & ((1 << bits) - 1)
            if 0 < exponent < (1 << bits) - 1:
                self.magnitudes[exponent - middle] += 1


def _belongs(runs: Sequence[Run] | None, index: int) -> bool:
    if runs is None:
        return True
    low, high = 0, len(runs)
    while low < high:
        middle = (low + high) // 2
        start, end = runs[middle]
        if index < start:
            high = middle
        elif index >= end:
            low = middle + 1
        else:
            return True
    return False


@cache
def _numpy() -> ModuleType | None:
    try:
        import numpy
    except Exception:  # absent, or broken by another package's version: the slow way finds the same
        return None
    return numpy
