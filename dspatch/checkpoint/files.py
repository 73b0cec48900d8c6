"""Opening and reading files that may be anything: whatever goes wrong becomes ``Damaged``."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from dspatch.checkpoint.damage import Damaged

#: Linux moves at most this many bytes in one call.
_ONE_CALL = 1 << 30


@contextmanager
def opened(path: str) -> Iterator[int]:
    """A read-only descriptor of a regular file, closed at the end.

    Raises:
        Damaged: there is no such file, it may not be read, or it is a folder, a pipe or a device.
    """
    try:
        # Non-blocking, so that a named pipe under a checkpoint's name cannot hold its reader for ever.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise Damaged(path, f"cannot be opened ({error.strerror or error})", "unreadable") from error
    except ValueError as error:
        raise Damaged(path.replace("\0", "\\0"), f"is no file name ({error})", "unreadable") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Damaged(path, "is not a regular file", "unreadable")
        yield descriptor
    finally:
        os.close(descriptor)


def read_exactly(path: str, descriptor: int, count: int, offset: int) -> bytes:
    """``count`` bytes from ``offset`` on.

    Raises:
        Damaged: the file ends before, or the storage reports an error.
    """
    buffer = bytearray(min(count, max(0, os.fstat(descriptor).st_size - offset)))
    read_into(path, descriptor, memoryview(buffer), offset)
    if len(buffer) != count:
        raise Damaged(path, f"ends {count - len(buffer):,} bytes too early", "cut")
    return bytes(buffer)


def read_into(path: str, descriptor: int, buffer: memoryview, offset: int) -> None:
    """Fill ``buffer`` (bytes) with what the file holds from ``offset`` on.

    Raises:
        Damaged: the file ends before, or the storage reports an error.
    """
    done = 0
    while done < len(buffer):
        try:
            moved = os.preadv(descriptor, [buffer[done : done + _ONE_CALL]], offset + done)
        except OSError as error:
            raise Damaged(path, f"cannot be read at byte {offset + done:,} ({error.strerror})", "unreadable") from error
        if not moved:
            raise Damaged(path, f"ends {len(buffer) - done:,} bytes too early", "cut")
        done += moved
