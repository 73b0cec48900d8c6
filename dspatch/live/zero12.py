"""ZeRO-1 and ZeRO-2: each rank steps one flat fp32 partition of every group (``DeepSpeedZeroOptimizer``)."""

from __future__ import annotations

from typing import Any

from dspatch.live.attributes import Names, partition_fragments, rank_in
from dspatch.live.base_optimizer import ELASTIC, add_groups, add_state, note_compressed
from dspatch.live.reading import LivePair, LiveTensor, Reading
from dspatch.live.scaler import add_scaler_object

ROOT = ("optimizer_state_dict",)
BASE = (*ROOT, "base_optimizer_state")

STALE = "engine.optimizer.refresh_fp32_params() makes the masters from the weights"


def read(reading: Reading, engine: Any, wrapper: Any) -> None:
    """Add masters, moments, step, hyperparameters and loss scale.

    ``single_partition_of_fp32_groups`` is padded at the tail (``groups_padding``); files hold it without the padding.
    The moments of rigid checkpoints are padded, those of elastic ones are not and lie in a list by group.
    """
    names, base = Names(engine), wrapper.optimizer
    ordered = getattr(wrapper, "round_robin_bit16_groups", None) or wrapper.bit16_groups
    offsets = getattr(wrapper, "round_robin_bit16_offsets", None)
    for index, master in enumerate(wrapper.single_partition_of_fp32_groups):
        rank, _ = rank_in(wrapper.real_dp_process_group[index])
        size = int(master.numel())
        starts = offsets[index] if offsets else None
        fragments = partition_fragments(names, ordered[index], starts, rank * size, (rank + 1) * size)
        lean = size - int(wrapper.groups_padding[index])
        label = f"group {index}"
        path = (*ROOT, "single_partition_of_fp32_groups", index)
        reading.tensors.append(LiveTensor("masters", label, "shard", path, master, lean, fragments))
        add_state(reading, base, index, master, "shard", BASE, fragments, lean, label, ((*BASE, index),))
        partitions = wrapper.parallel_partitioned_bit16_groups[index]
        if len(partitions) > rank:
            reading.pairs.append(LivePair("masters", label, master, partitions[rank], fragments, STALE))
    # Rigid checkpoints always hold the groups, so nothing at that path means an elastic one.
    add_groups(reading, base, "shard", BASE, ELASTIC)
    add_scaler_object(reading, wrapper, "shard", ROOT)
    note_compressed(reading, base)
