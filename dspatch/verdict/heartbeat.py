"""Tells slow ranks from hung ones: while DeepSpeed loads, a rank that goes on reading says so.

Ranks of one job may need very different times for a load, and a limit on that would stop healthy clusters. So the limit
is on standing still: the counter of a rank moves as long as its process reads files. One that waits in a collective, or
was stopped, does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dspatch.verdict.repeating import repeating

#: Bytes between two looks that count as reading; less is what a process does anyway.
_READING = 1 << 16


def bytes_read() -> int | None:
    """What this process has read so far, by any file descriptor; None where the system does not tell."""
    try:
        text = Path("/proc/self/io").read_text(encoding="ascii")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("rchar:")), None)


@contextmanager
def beating(say: Callable[[int], None], every: float) -> Iterator[None]:
    """Call ``say`` with a growing number, every so many seconds in which this process has read files.

    Args:
        say: called in a thread of its own; an exception ends the beating, and then the rank counts as standing still.
        every: seconds between two looks.
    """
    before, count, heard = bytes_read(), 0, True

    def beat() -> None:
        nonlocal before, count, heard
        now = bytes_read()
        if heard and now is not None and before is not None and now - before >= _READING:
            count += 1
            try:
                say(count)
            except Exception:
                heard = False
        before = now

    with repeating("dspatch-heartbeat", every, beat):
        yield
