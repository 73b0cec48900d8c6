"""A long verdict says how far it is, on rank 0 alone; a short one says nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import pytest
import torch

from dspatch.verdict import memory, progress


def said(caplog: pytest.LogCaptureFixture, rank: int, seconds: float, counts: Sequence[int] = ()) -> list[str]:
    with caplog.at_level(logging.INFO, "dspatch"), progress.told(rank):
        progress.current.expect(4_000_000_000)
        for count in counts:
            progress.current.add(count)
        time.sleep(seconds)
    return [record.getMessage() for record in caplog.records]


def test_a_long_one_tells(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.05)
    lines = said(caplog, 0, 0.4, [1_000_000_000, 500_000_000])
    assert lines
    assert "1.50 of 4.00 GB on this rank" in lines[0]


def test_other_ranks_and_short_ones_are_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert said(caplog, 0, 0.1) == []
    monkeypatch.setattr(progress, "EVERY", 0.05)
    assert said(caplog, 1, 0.2) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_checksums_count_their_bytes(threads: int) -> None:
    with progress.told(1):
        memory.crc_of_runs([torch.zeros(20 << 20, dtype=torch.uint8), torch.zeros(7, dtype=torch.uint8)], threads)
        assert (progress.current._done, progress.current._total) == ((20 << 20) + 7,) * 2
