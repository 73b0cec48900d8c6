"""Judging checkpoints without a GPU, without DeepSpeed and without torch: what ``dspatch inspect`` works with.

``survey`` lists folders, ``record`` turns each file into plain data, ``deep`` adds checksums and values, ``judge`` turns
the plain data of one tag into a verdict and findings, ``resume`` answers who can load it. Between reading and judging
lies only plain data, so the reading can be spread over machines (``parts``). ``text`` and ``page`` show the result.
"""

from __future__ import annotations
