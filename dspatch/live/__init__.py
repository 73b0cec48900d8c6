"""What an engine holds: one reader for each optimizer family, all giving the same kind of ``Reading``.

A reader is a list of pairs: a live object, and the place in a checkpoint file that should hold the same. It compares
nothing, copies nothing, and runs nothing that other ranks would have to join. DeepSpeed is never imported here; engines
are looked at through their attributes, defensively, since those differ between releases.
"""

from __future__ import annotations

from dspatch.live.reader import read
from dspatch.live.reading import Fragment, LivePair, LiveState, LiveTensor, LiveValue, Reading

__all__ = ["Fragment", "LivePair", "LiveState", "LiveTensor", "LiveValue", "Reading", "read"]
