"""How far a long verdict is: rank 0 says so at INFO every ten seconds. A short one, as most are, says nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dspatch import log
from dspatch.verdict.repeating import repeating

#: Seconds between two lines, and before the first.
EVERY = 10.0


class Progress:
    """Bytes compared so far; safe to add to from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._total = self._done = 0

    def expect(self, count: int) -> None:
        """There are ``count`` bytes more to compare."""
        with self._lock:
            self._total += count

    def add(self, count: int) -> None:
        """``count`` bytes were compared."""
        with self._lock:
            self._done += count

    def __str__(self) -> str:
        seconds = time.monotonic() - self._started
        share = f"{self._done / 1e9:.2f} of {self._total / 1e9:.2f} GB on this rank" if self._total else "reading"
        return f"comparing the loaded state with its files for {seconds:.0f} s: {share}"


#: Of the verdict that runs in this process; one at a time.
current = Progress()


@contextmanager
def told(rank: int) -> Iterator[None]:
    """Begin anew; on rank 0 tell how far it is until the block ends."""
    global current  # noqa: PLW0603 - threads of the comparison cannot be handed a context
    current = Progress()
    if rank:
        yield
        return
    with repeating("dspatch-progress", EVERY, lambda: log.logger().info("%s", current)):
        yield
