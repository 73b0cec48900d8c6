"""``BF16_Optimizer``: flat fp32 partitions like ZeRO-1, written with their padding, and no loss scale."""

from __future__ import annotations

from typing import Any

from dspatch.live.attributes import Names, covered, partition_fragments, rank_in
from dspatch.live.base_optimizer import add_groups, add_state, note_compressed
from dspatch.live.reading import LivePair, LiveTensor, Reading
from dspatch.live.zero12 import BASE, ROOT, STALE


def read(reading: Reading, engine: Any, wrapper: Any) -> None:
    """Add masters, moments, step and hyperparameters."""
    names, base = Names(engine), wrapper.optimizer
    for index, master in enumerate(wrapper.fp32_groups_flat_partition):
        rank, _ = rank_in(wrapper.real_dp_process_group[index])
        size = int(master.numel())
        fragments = partition_fragments(names, wrapper.bf16_groups[index], None, rank * size, (rank + 1) * size)
        lean, label = covered(fragments), f"group {index}"
        path = (*ROOT, "single_partition_of_fp32_groups", index)
        reading.tensors.append(LiveTensor("masters", label, "shard", path, master, lean, fragments))
        add_state(reading, base, index, master, "shard", BASE, fragments, lean, label)
        partitions = wrapper.bf16_partitioned_groups[index]
        if len(partitions) > rank:
            reading.pairs.append(LivePair("masters", label, master, partitions[rank], fragments, STALE))
    add_groups(reading, base, "shard", BASE)
    note_compressed(reading, base)
