"""``FP16_Optimizer``, stage 0 with a fused optimizer: one flat fp32 tensor for each group, the same on all ranks."""

from __future__ import annotations

from typing import Any

from dspatch.live.attributes import Names, partition_fragments
from dspatch.live.base_optimizer import add_groups, add_state, note_compressed
from dspatch.live.reading import LivePair, LiveTensor, Reading
from dspatch.live.scaler import add_scaler_attributes
from dspatch.live.zero12 import STALE

ROOT = ("optimizer",)
BASE = (*ROOT, "optimizer_state_dict")


def read(reading: Reading, engine: Any, wrapper: Any) -> None:
    """Add masters, moments, step, hyperparameters and loss scale."""
    names, base = Names(engine), wrapper.optimizer
    for index, master in enumerate(wrapper.fp32_groups_flat):
        size = int(master.numel())
        fragments, label = partition_fragments(names, wrapper.fp16_groups[index], None, 0, size), f"group {index}"
        path = (*ROOT, "fp32_groups_flat", index)
        reading.tensors.append(LiveTensor("masters", label, "model", path, master, size, fragments))
        add_state(reading, base, index, master, "model", BASE, fragments, size, label)
        reading.pairs.append(LivePair("masters", label, master, wrapper.fp16_groups_flat[index], fragments, STALE))
    add_groups(reading, base, "model", BASE)
    add_scaler_attributes(reading, wrapper, "model", ROOT)
    note_compressed(reading, base)
