"""``FP16_UnfusedOptimizer``, stage 0 with any other optimizer: one fp32 tensor for each parameter."""

from __future__ import annotations

from typing import Any

from dspatch.live.attributes import Names
from dspatch.live.base_optimizer import add_groups, add_state, note_compressed
from dspatch.live.fp16_fused import BASE, ROOT
from dspatch.live.reading import Fragment, LivePair, LiveTensor, Reading
from dspatch.live.scaler import add_scaler_attributes
from dspatch.live.zero12 import STALE


def read(reading: Reading, engine: Any, wrapper: Any) -> None:
    """Add masters, moments, step, hyperparameters and loss scale."""
    names, base, number = Names(engine), wrapper.optimizer, 0
    for group, masters in enumerate(wrapper.fp32_groups):
        for position, master in enumerate(masters):
            weight = wrapper.fp16_groups[group][position]
            name, size = names.of(weight), int(master.numel())
            fragments = (Fragment(name, 0, size),)
            path = (*ROOT, "fp32_groups", group, position)
            reading.tensors.append(LiveTensor("masters", name, "model", path, master, size, fragments))
            add_state(reading, base, number, master, "model", BASE, fragments, size, name)
            reading.pairs.append(LivePair("masters", name, master, weight, fragments, STALE))
            number += 1
    add_groups(reading, base, "model", BASE)
    add_scaler_attributes(reading, wrapper, "model", ROOT)
    note_compressed(reading, base)
