"""A torch optimizer without a wrapper (stage 0 in fp32): it steps the module's own parameters, there are no masters."""

from __future__ import annotations

from typing import Any

from dspatch.live.attributes import Names
from dspatch.live.base_optimizer import add_groups, add_state, note_compressed
from dspatch.live.reading import Fragment, Reading

ROOT = ("optimizer",)


def read(reading: Reading, engine: Any, optimizer: Any) -> None:
    """Add moments, step and hyperparameters."""
    names = Names(engine)
    number = 0
    for group in optimizer.param_groups:
        for param in group["params"]:
            name, size = names.of(param), int(param.numel())
            add_state(reading, optimizer, number, param, "model", ROOT, (Fragment(name, 0, size),), size, name)
            number += 1
    add_groups(reading, optimizer, "model", ROOT)
    note_compressed(reading, optimizer)
