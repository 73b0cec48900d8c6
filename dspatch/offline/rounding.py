"""Do the masters of a shard give the weights of the model file? A sample says so, for a few reads of four bytes.

At stages 0 to 2 the 16-bit weights are the rounded masters, bit for bit, since both are written at the same moment. A
shard of another run or another save under the right name is of the right size and has a valid checksum, and fails here.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from dspatch.checkpoint.files import opened
from dspatch.checkpoint.shard import FileFacts
from dspatch.checkpoint.tensors import TensorRef

#: Elements looked at in each piece of a parameter, and pieces in each shard.
_ELEMENTS, _PIECES = 8, 256


def disagreement(shard: FileFacts, model: FileFacts, rank: int) -> tuple[int, int] | None:
    """``(differing, sampled)`` when most of a sample differs by more than rounding explains; None when all is well.

    Also None where it cannot be told: other optimizers, ``round_robin_gradients``, aligned parameters, other dtypes.

    Raises:
        Damaged: a file cannot be read.
    """
    if not _comparable(shard, model):
        return None
    differing = sampled = 0
    assert shard.optimizer is not None and model.module is not None
    for group, master in enumerate(shard.optimizer.masters):
        for weight, at_weight, at_master, count in _pieces(shard, model, group, rank):
            one, other = _sample(master, at_master, count), _sample(weight, at_weight, count)
            sampled += len(one)
            differing += sum(not _agrees(a, b, weight.dtype) for a, b in zip(one, other, strict=True))
    return (differing, sampled) if sampled >= _ELEMENTS and differing * 2 > sampled else None


def rounds_to(master: TensorRef, at: int, weight: TensorRef) -> bool | None:
    """Whether a sample of fp32 elements gives that of a weight, to within rounding; None when both are zero throughout.

    Args:
        master: fp32, contiguous.
        at: its first element that may belong to the weight.
        weight: contiguous, of a 16-bit or 32-bit float dtype.

    Raises:
        Damaged: a file cannot be read.
    """
    one, other = _sample(master, at, weight.numel), _sample(weight, 0, weight.numel)
    if not any(map(any, (*one, *other))):
        return None
    return all(_agrees(a, b, weight.dtype) for a, b in zip(one, other, strict=True))


def _comparable(shard: FileFacts, model: FileFacts) -> bool:
    zero = shard.ds_config.get("zero_optimization")
    aligned = isinstance(zero, dict) and zero.get("parameter_alignment")
    return bool(
        shard.optimizer is not None and shard.optimizer.style in ("zero12", "bf16") and model.module and shard.slices
        and not shard.round_robin and not aligned and len(shard.slices) == len(model.param_shapes)
        and len(shard.slices) == len(shard.optimizer.masters) and max(shard.partition_count, default=0) > 0
        and all(ref.dtype == "float32" and ref.is_contiguous for ref in shard.optimizer.masters)
    )  # fmt: skip


def _pieces(shard: FileFacts, model: FileFacts, group: int, rank: int) -> Iterator[tuple[TensorRef, int, int, int]]:
    """``(weight, first element in it, first element of the master, elements)`` of each piece of a parameter."""
    assert shard.optimizer is not None and model.module is not None
    count = shard.partition_count[group] if group < len(shard.partition_count) else 0
    if count != max(shard.partition_count):
        return
    paddings = shard.group_paddings[group] if group < len(shard.group_paddings) else 0
    size = shard.optimizer.masters[group].numel + (paddings if shard.optimizer.style == "zero12" else 0)
    begin, position = {}, 0
    for name, shape in model.param_shapes[group]:
        begin[name] = position
        numel = 1
        for length in shape:
            numel *= length
        position += numel
    listed = shard.slices[group]
    step = max(1, len(listed) // _PIECES)
    for name, start, length in listed[::step]:
        weight = model.module.get(name)
        if weight is None or name not in begin or weight.dtype not in ("bfloat16", "float16", "float32"):
            continue
        # The first piece of a partition may begin inside its parameter.
        skipped = max(0, rank * size + start - begin[name])
        if weight.is_contiguous and length and skipped + length <= weight.numel:
            yield weight, skipped, start, length


def _sample(ref: TensorRef, start: int, count: int) -> list[bytes]:
    wanted = range(start, start + count, max(1, count // _ELEMENTS))[:_ELEMENTS]
    with opened(ref.path) as descriptor:
        offset = ref.record.locate(descriptor) + ref.storage_offset * ref.itemsize
        return [os.pread(descriptor, ref.itemsize, offset + at * ref.itemsize) for at in wanted]


def _agrees(master: bytes, weight: bytes, dtype: str) -> bool:
    if dtype == "float32":
        return master == weight
    if dtype == "bfloat16":
        bits = int.from_bytes(master, "little")
        return abs(_ordered(bits + 0x7FFF + (bits >> 16 & 1) >> 16 & 0xFFFF) - _ordered(_whole(weight))) <= 1
    try:
        rounded = struct.pack("<e", struct.unpack("<f", master)[0])
    except OverflowError:
        return (_whole(weight) & 0x7FFF) == 0x7C00
    return abs(_ordered(_whole(rounded)) - _ordered(_whole(weight))) <= 1


def _whole(raw: bytes) -> int:
    return int.from_bytes(raw, "little")


def _ordered(bits: int) -> int:
    """A 16-bit float's place among all of them, so that neighbours differ by one."""
    return -(bits & 0x7FFF) if bits & 0x8000 else bits
