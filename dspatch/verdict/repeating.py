"""Something done again and again in a thread of its own while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(name: str, every: float, step: Callable[[], object]) -> Iterator[None]:
    """Call ``step`` each ``every`` seconds, first after that time, until the block ends; it must not raise.

    Args:
        name: of the thread.
        every: seconds between two calls.
        step: what to do.
    """
    over = threading.Event()

    def work() -> None:
        while not over.wait(every):
            step()

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
