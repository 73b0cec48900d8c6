"""Values of masters and moments as they stream by: NaN and infinity, all zero, and how large they are.

With numpy one pass over data that the checksum has just brought into the cache, and none of it under the GIL; without
numpy the standard library finds the same, more slowly.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from functools import cache
from types import ModuleType

#: dtype -> (bytes, mask of the exponent in the whole element, code of ``struct``).
_FORMS = {
    "float64": (8, 0x7FF0_0000_0000_0000, "Q"),
    "float32": (4, 0x7F80_0000, "I"),
    "bfloat16": (2, 0x7F80, "H"),
    "float16": (2, 0x7C00, "H"),
}
#: Elements of each tensor whose magnitudes are counted.
_SAMPLE = 1024

_INFINITY = float("inf")

#: First and last-plus-one element of a run that belongs to parameters.
Run = tuple[int, int]


class Scan:
    """Looks at one tensor, piece by piece, in order.

    Args:
        dtype: of the tensor.
        runs: elements that belong to parameters, in order; None: all. Padding is uninitialised memory at times.
        start: index of the first element that will be fed.
        one_pass: look for NaN and plus infinity only, for half the time: enough for what is never negative.

    Attributes:
        bad: number of elements that are NaN or infinite.
        first_bad: index of the first of them; None without.
        zero: every element seen so far is 0.
        magnitudes: exponent to the base of 2 -> how many elements of a sample have it.
    """

    def __init__(self, dtype: str, runs: Sequence[Run] | None = None, start: int = 0, one_pass: bool = False) -> None:
        self._size, self._mask, self._code = _FORMS[dtype]
        self._dtype, self._runs = dtype, runs
        self._at, self._one_pass = start, one_pass
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
        count = len(piece) // self._size
        numpy = _numpy()
        if self._at == 0:
            self._measure(piece[: _SAMPLE * self._size])
        suspicious = self._quick(piece, numpy) if numpy is not None else self._plain(piece)
        if suspicious:
            self._count(piece, count)
        self._at += count

    def _quick(self, piece: memoryview, numpy: ModuleType) -> bool:
        if self._dtype in ("float32", "float64"):
            values = numpy.frombuffer(piece, self._dtype)
            high = float(values.max())  # NaN if there is one
            if self.zero:
                self.zero = high == 0 and not values.any()
            return not high < _INFINITY or (not self._one_pass and not float(values.min()) > -_INFINITY)
        bits = numpy.frombuffer(piece, numpy.uint16) & numpy.uint16(0x7FFF)
        largest = int(bits.max())
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

    def _count(self, piece: memoryview, count: int) -> None:
        for index, (bits,) in enumerate(struct.iter_unpack(f"<{self._code}", piece)):
            if bits & self._mask == self._mask and self._belongs(self._at + index):
                self.bad += 1
                if self.first_bad is None:
                    self.first_bad = self._at + index

    def _belongs(self, index: int) -> bool:
        if self._runs is None:
            return True
        low, high = 0, len(self._runs)
        while low < high:
            middle = (low + high) // 2
            start, end = self._runs[middle]
            if index < start:
                high = middle
            elif index >= end:
                low = middle + 1
            else:
                return True
        return False

    def _measure(self, piece: memoryview) -> None:
        bits = 11 if self._dtype == "float64" else 5 if self._dtype == "float16" else 8
        shift = self._size * 8 - 1 - bits
        middle = (1 << (bits - 1)) - 1
        for (value,) in struct.iter_unpack(f"<{self._code}", piece):
            exponent = (value >> shift) & ((1 << bits) - 1)
            if 0 < exponent < (1 << bits) - 1:
                self.magnitudes[exponent - middle] += 1


@cache
def _numpy() -> ModuleType | None:
    try:
        import numpy
    except Exception:  # absent, or broken by another package's version: the slow way finds the same
        return None
    return numpy
