"""ZeRO-3: every parameter is cut into equal parts, one for each rank; parts lie in flat tensors by sub-group.

``DeepSpeedZeroOptimizer_Stage3`` keeps fp32 parts in ``fp32_partitioned_groups_flat`` and low-precision parts in
``param.ds_tensor``. The last rank's part of a parameter is padded. ``param.data`` of a parameter that is not gathered
holds nothing and is never looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dspatch.live.attributes import Names, rank_in
from dspatch.live.base_optimizer import add_groups, add_state, note_compressed
from dspatch.live.reading import Fragment, LivePair, LiveState, LiveTensor, Path, Reading
from dspatch.live.scaler import add_scaler_object
from dspatch.live.swapped import swap_rank, swapped_state

ROOT = ("optimizer_state_dict",)
BASE = (*ROOT, "optimizer_state_dict")

_STALE = "engine.optimizer.refresh_fp32_params() makes the masters from the weights"
_EMPTY = "the masters are not in memory, and no swap file is known to hold them"


def read(reading: Reading, engine: Any, wrapper: Any) -> None:
    """Add weights, masters, moments, step, hyperparameters and loss scale."""
    names, base = Names(engine), wrapper.optimizer
    positions = dict(_positions(wrapper))
    reading.swap_rank = swap_rank(engine)
    for index, master in enumerate(wrapper.fp32_partitioned_groups_flat):
        params = wrapper.fp16_groups[index]
        fragments = _fragments(names, params)
        label, path = f"sub-group {index}", (*ROOT, "fp32_flat_groups", index)
        if master.numel():
            _add_masters(reading, names, master, params, fragments, label, path)
            add_state(reading, base, positions[index], master, "shard", BASE, fragments, int(master.numel()), label)
        elif (there := swapped_state(wrapper, master, base)) is not None:
            size, state = int(there.master.numel()), (*BASE, "state", positions[index])
            _add_masters(reading, names, there.master, params, fragments, label, path, there.name)
            reading.states.append(
                LiveState(label, "shard", (state,), there.entries, size, size, fragments, there.names)
            )
        elif fragments:
            # The weights of these parameters come from their masters.
            for component in ("masters", "moments", "optimizer_step", "weights"):
                reading.not_checked[component] = _EMPTY
    add_groups(reading, base, "shard", BASE)
    add_scaler_object(reading, wrapper, "shard", ROOT)
    note_compressed(reading, base)
    read_parameters(reading, engine, names)


def _add_masters(
    reading: Reading, names: Names, master: Any, params: Any, fragments: tuple[Fragment, ...], label: str, path: Path,
    swap: str = "",
) -> None:  # fmt: skip
    size = int(master.numel())
    reading.tensors.append(LiveTensor("masters", label, "shard", path, master, size, fragments, swap=swap))
    _pairs_with_weights(reading, names, master, params, path, swap)


def read_parameters(reading: Reading, engine: Any, names: Names) -> None:
    """Frozen parameters against the model file, and copies of a partition against the partition."""
    for param in engine.module.parameters():
        part = getattr(param, "ds_tensor", None)
        if part is None or not part.numel():
            continue
        valid = valid_numel(param)
        fragments = (Fragment(names.of(param), 0, valid),)
        if not param.requires_grad and not hasattr(part, "ds_quant_scale"):
            path = ("frozen_param_fragments", names.of(param))
            reading.tensors.append(LiveTensor("frozen", names.of(param), "model", path, part, valid, fragments))
        _pair_with_gathered(reading, param, part, names.of(param))
        _pair_with_secondary(reading, param, part, names.of(param))


def valid_numel(param: Any) -> int:
    """Elements of this rank's part that belong to the parameter and are no padding."""
    rank, _ = rank_in(param.ds_process_group)
    size = int(param.partition_numel())
    return max(0, min(size, int(param.ds_numel) - rank * size))


def _fragments(names: Names, params: Any) -> tuple[Fragment, ...]:
    found, position = [], 0
    for param in params:
        valid = valid_numel(param)
        if valid:
            found.append(Fragment(names.of(param), position, valid))
        position += int(param.partition_numel())
    return tuple(found)


def _positions(wrapper: Any) -> Iterator[tuple[int, int]]:
    """Sub-group -> its number in the state dict: sub-groups are appended to the param groups they were made from."""
    group_of = wrapper.sub_group_to_group_id
    for number, index in enumerate(sorted(range(len(wrapper.fp16_groups)), key=lambda one: (group_of[one], one))):
        yield index, number


def _pairs_with_weights(reading: Reading, names: Names, master: Any, params: Any, path: Path, swap: str) -> None:
    position = 0
    for param in params:
        part, size = param.ds_tensor, int(param.partition_numel())
        valid = valid_numel(param)
        if valid and part.numel() >= valid and not hasattr(part, "ds_quant_scale"):
            source = master.detach().reshape(-1).narrow(0, position, size)
            name = names.of(param)
            fragments = (Fragment(name, 0, valid),)
            reading.pairs.append(
                LivePair("masters", name, source, part, fragments, _STALE, "shard", path, position, swap)
            )
        position += size


def _pair_with_gathered(reading: Reading, param: Any, part: Any, name: str) -> None:
    """Persistent parameters stay gathered on every rank; that copy is what forward uses."""
    status = getattr(getattr(param, "ds_status", None), "name", "")
    if status != "AVAILABLE" or not getattr(param, "ds_persist", False) or param.numel() != param.ds_numel:
        return
    rank, _ = rank_in(param.ds_process_group)
    size, valid = int(param.partition_numel()), valid_numel(param)
    if valid and param.dtype == part.dtype:
        copy = param.detach().reshape(-1).narrow(0, rank * size, valid)
        reading.pairs.append(LivePair("weights", f"gathered {name}", part, copy, (Fragment(name, 0, valid),)))


def _pair_with_secondary(reading: Reading, param: Any, part: Any, name: str) -> None:
    """ZeRO++ keeps a second, coarser partition for forward; where it overlaps this rank's part it must be equal."""
    second = getattr(param, "ds_secondary_tensor", None)
    if second is None or hasattr(second, "ds_quant_scale") or hasattr(part, "ds_quant_scale"):
        return
    rank, _ = rank_in(param.ds_process_group)
    groups = max(1, int(getattr(param, "ds_secondary_tensor_group_size", 1)))
    size, wide = int(param.partition_numel()), int(second.numel())
    begin = wide * (rank % groups)
    low, high = max(rank * size, begin), min(rank * size + valid_numel(param), begin + wide)
    if low < high and second.dtype == part.dtype:
        source = part.detach().reshape(-1).narrow(0, low - rank * size, high - low)
        copy = second.detach().reshape(-1).narrow(0, low - begin, high - low)
        fragments = (Fragment(name, 0, high - low),)
        reading.pairs.append(LivePair("weights", f"secondary partition of {name}", source, copy, fragments))
