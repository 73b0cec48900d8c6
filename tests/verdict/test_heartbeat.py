"""A process that reads beats, one that stands still does not; and a store that is gone ends the beating without noise."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dspatch.verdict.heartbeat import beating, bytes_read

pytestmark = pytest.mark.skipif(bytes_read() is None, reason="the system does not tell what a process has read")


def test_reading_beats(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    said: list[int] = []
    with beating(said.append, 0.02):
        for _ in range(20):
            path.read_bytes()
            time.sleep(0.01)
    assert said == list(range(1, len(said) + 1))
    assert len(said) > 2


def test_standing_still_does_not() -> None:
    said: list[int] = []
    with beating(said.append, 0.02):
        time.sleep(0.3)
    assert said == []


def test_a_listener_that_raises_ends_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, calls = tmp_path / "file", []
    path.write_bytes(bytes(1 << 20))

    def gone(count: int) -> None:
        calls.append(count)
        raise RuntimeError("the store is gone")

    with beating(gone, 0.02):
        for _ in range(20):
            path.read_bytes()
            time.sleep(0.01)
    assert calls == [1]
    assert capfd.readouterr().err == ""
