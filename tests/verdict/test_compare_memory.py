"""Checksums and byte comparison of live memory."""

from __future__ import annotations

import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspatch.verdict import memory

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_checksum_of_live_bytes(dtype: torch.dtype, threads: int) -> None:
    tensor = torch.arange(1000).to(dtype)
    expected = zlib.crc32(bytes(tensor.view(torch.uint8).tolist()))
    assert memory.crc_of_runs([memory.flat_bytes(tensor)], threads) == [expected]


def test_checksum_of_several_large_tensors_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "PIECE", 1 << 10)
    monkeypatch.setattr(memory, "_WORTH_THREADS", 1)
    runs = [memory.flat_bytes(torch.randn(size)) for size in (0, 1, 257, 5000)]
    assert memory.crc_of_runs(runs, 4) == [zlib.crc32(bytes(run.tolist())) for run in runs]


def test_a_view_shares_its_storage() -> None:
    base = torch.arange(10.0)
    assert memory.storage_bytes(base[3:5]).tolist() == memory.flat_bytes(base).tolist()
    assert memory.flat_bytes(base.reshape(2, 5).t()).numel() == 40


@settings(max_examples=60)
@given(st.integers(0, 7), st.integers(1, 70), st.data())
def test_one_changed_byte_is_seen_at_any_alignment(offset: int, size: int, data: st.DataObject) -> None:
    base = torch.randint(0, 256, (size + 8,), dtype=torch.uint8)
    one, other = base[offset : offset + size], base.clone()[offset : offset + size]
    assert memory.same_bytes(one, other)
    position = data.draw(st.integers(0, size - 1))
    other[position] ^= 1
    assert not memory.same_bytes(one, other)
    assert memory.first_difference(one, other) == position
