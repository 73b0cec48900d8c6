"""Checksums of what a file holds."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from dspatch.checkpoint import content


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_checksums_are_put_together(first: bytes, second: bytes) -> None:
    whole = zlib.crc32(first + second)
    assert content.crc_combined(zlib.crc32(first), zlib.crc32(second), len(second)) == whole


@given(st.integers(0, 3 * content.CHUNK))
def test_checksum_of_zeros(size: int) -> None:
    assert content.crc_of_zeros(size) == zlib.crc32(bytes(size))
