"""The error of this room: a file that is not what torch and DeepSpeed write."""

from __future__ import annotations

import os

from dspatch.errors import DspatchError


class Damaged(DspatchError):
    """A checkpoint file cannot be trusted: cut, changed, not what its name says, or made to harm its reader.

    Attributes:
        path: the file.
        why: one clause without the path, such as ``"is empty (0 bytes)"``; it completes "the file ...".
        kind: a stable word for programs: ``unreadable``, ``empty``, ``cut``, ``over-long``, ``not torch``, ``index``,
            ``hostile``, ``pickle``, ``tensor``, ``limit``, ``crc`` or ``content``.
    """

    def __init__(self, path: str | os.PathLike[str], why: str, kind: str = "content") -> None:
        super().__init__(f"{os.fspath(path)} {why}")
        self.path = os.fspath(path)
        self.why = why
        self.kind = kind
