"""What real releases write is read right: every tensor, every value, every fact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dspatch.checkpoint import layout
from dspatch.checkpoint.archive import Archive
from dspatch.checkpoint.content import check_record, crc_of, crc_of_tensor, pieces, read_bytes, scalar
from dspatch.checkpoint.damage import Damaged
from dspatch.checkpoint.inert import Opaque, enum_value
from dspatch.checkpoint.shard import facts_of, rank_of
from dspatch.checkpoint.tensors import TensorRef
from dspatch.checkpoint.unpickle import read_tree
from tests.checkpoint.conftest import BUILDS, Saved

_ROLES = ("oldest", "newest")


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("role", _ROLES)
def test_every_value_is_what_torch_reads(role: str, build: str, saved: Saved) -> None:
    paths = sorted(saved(role, build).glob("global_step*/*.pt"))
    assert len(paths) >= 2
    for path in paths:
        # No DeepSpeed here, so its classes are stand-ins for torch too.
        expected = _load_without_deepspeed(path)
        tree = read_tree(path)
        assert _compare(tree.root, expected, ()) >= len(tree.tensors) > 0
        assert tree.archive is not None
        tree.archive.check_structure()
        for record in tree.archive.records.values():
            check_record(record)


@pytest.mark.parametrize("role", _ROLES)
@pytest.mark.parametrize("stage", [1, 2])
def test_facts_of_partitioned_optimizers(role: str, stage: int, saved: Saved, version: Callable[[str], str]) -> None:
    tag = saved(role, f"z{stage}-fp16") / "global_step5"
    model = facts_of(read_tree(tag / layout.model_file(stage)))
    assert (model.stage, model.precision, model.ds_version) == (stage, "fp16", version(role))
    assert (model.global_steps, model.skipped_steps, model.dp_world_size, model.mp_world_size) == (5, 0, 2, 1)
    assert model.param_shapes[0][0] == ("first.weight", (17, 11))
    for rank in (0, 1):
        shard = facts_of(read_tree(tag / layout.shard_file(rank)))
        assert shard.optimizer is not None
        assert (shard.stage, shard.optimizer.style, shard.optimizer.kind) == (stage, "zero12", "Adam")
        assert shard.optimizer.steps == {5.0}
        assert shard.optimizer.scaler["cur_scale"] == 256
        assert shard.partition_count == [2]
        assert rank_of(shard, model) == [rank]
        assert sum(numel for _, _, numel in shard.slices[0]) == shard.optimizer.masters[0].numel


@pytest.mark.parametrize("role", _ROLES)
def test_facts_of_stage_3(role: str, saved: Saved) -> None:
    tag = saved(role, "z3-rich") / "global_step5"
    model = facts_of(read_tree(tag / layout.model_file(3, dp_rank=1)))
    shard = facts_of(read_tree(tag / layout.shard_file(1, bf16=True)))
    assert shard.optimizer is not None
    assert (shard.stage, shard.optimizer.style, shard.partition_count) == (3, "zero3", [2])
    assert shard.optimizer.moment_names == ["exp_avg", "exp_avg_sq"]
    assert [group["weight_decay"] for group in shard.optimizer.groups] == [0.05, 0.0]
    assert set(model.frozen_shapes) == {"first.weight", "first.bias"}
    assert model.has_scheduler
    # Only rank 0 lists tied weights.
    assert model.shared == {}
    zero = facts_of(read_tree(tag / layout.model_file(3, dp_rank=0)))
    assert zero.shared == {"middle.1.weight": "middle.0.weight"}
    # The second save of the session had no client state, the first one has.
    first = facts_of(read_tree(saved(role, "z3-rich") / "global_step3" / layout.model_file(3, dp_rank=1)))
    assert (model.client_keys, first.client_keys) == ([], ["epoch", "note"])


def test_facts_of_stage_0(saved: Saved) -> None:
    plain = facts_of(read_tree(saved("newest", "z0-fp32") / "global_step5" / layout.model_file(0)))
    wrapped = facts_of(read_tree(saved("newest", "z0-bf16") / "global_step5" / layout.model_file(0)))
    old = facts_of(read_tree(saved("oldest", "z0-bf16") / "global_step5" / layout.shard_file(1, bf16=True)))
    assert plain.optimizer is not None and wrapped.optimizer is not None and old.optimizer is not None
    assert (plain.stage, plain.optimizer.style, plain.optimizer.steps) == (0, "torch", {5.0})
    # This wrapper takes one optimizer step when it is built.
    assert (wrapped.optimizer.style, wrapped.optimizer.steps, wrapped.precision) == ("fp16", {6.0}, "bf16")
    assert (old.optimizer.style, old.stage, old.optimizer.scaler) == ("bf16", 0, {})


def test_stand_ins_stay_readable(saved: Saved) -> None:
    tree = read_tree(saved("newest", "z2-fp16") / "global_step5" / layout.shard_file(0))
    scaler = tree.root["optimizer_state_dict"]["loss_scaler"]
    assert isinstance(scaler, Opaque)
    assert (scaler.name, scaler.get("cur_scale"), scaler.get("absent", 7)) == ("DynamicLossScaler", 256, 7)
    assert enum_value(tree.root["optimizer_state_dict"]["zero_stage"]) == 2
    assert tree.get(("optimizer_state_dict", "loss_scaler", "cur_scale")) == 256
    assert tree.get(("optimizer_state_dict", "base_optimizer_state", "param_groups", 0, "lr")) == 3e-3
    assert tree.get(("optimizer_state_dict", "param_groups", 9), "none") == "none"


@pytest.mark.parametrize("zip_format", [True, False])
def test_both_formats_of_torch_save(zip_format: bool, tmp_path: Path) -> None:
    base = torch.arange(24, dtype=torch.float64)
    value = {
        "whole": base, "part": base[3:9], "turned": base.view(4, 6).t(), "none": torch.empty(0, 3),
        "scalar": torch.tensor(-2.5), "half": torch.arange(5).half(), "b16": torch.arange(5).bfloat16(),
        "flags": torch.tensor([True, False]), "param": torch.nn.Parameter(torch.ones(2, 3)), "int": torch.tensor(2**40),
        "eight": torch.ones(3).to(torch.float8_e4m3fn), "size": torch.Size([2, 3]), "dtype": torch.bfloat16,
    }  # fmt: skip
    path = tmp_path / "x.pt"
    torch.save(value, path, _use_new_zipfile_serialization=zip_format)

    tree = read_tree(path)

    assert _compare(tree.root, value, ()) == 11
    assert (tree.root["size"], tree.root["dtype"].full_name) == ((2, 3), "torch.bfloat16")
    assert scalar(tree.root["scalar"]) == -2.5
    assert scalar(tree.root["int"]) == 2**40
    assert scalar(tree.root["whole"]) is None
    assert tree.root["whole"].is_whole_record and not tree.root["part"].is_whole_record
    if zip_format:
        assert crc_of(base.numpy()) == tree.root["whole"].record.crc32


def test_parts_of_tensors(tmp_path: Path) -> None:
    base = torch.arange(1000, dtype=torch.int32)
    torch.save(base, tmp_path / "x.pt")
    ref = read_tree(tmp_path / "x.pt").root
    assert bytes(read_bytes(ref, 17, 5)) == base[17:22].numpy().tobytes()
    assert b"".join(bytes(piece) for piece in pieces(ref, 1, 998, chunk=64)) == base[1:999].numpy().tobytes()
    assert crc_of_tensor(ref, 3, 90) == crc_of(base[3:93].numpy())
    assert (len(read_bytes(ref, 1000)), list(pieces(ref, 5, 0))) == (0, [])
    for start, count in ((-1, 2), (999, 2), (0, 1001), (5, -1)):
        with pytest.raises(ValueError):
            read_bytes(ref, start, count)


def test_a_step_is_read_from_the_index_alone(tmp_path: Path) -> None:
    for value in (0.0, 1.0, 5.0, 123456.0, float("inf")):
        torch.save({"step": torch.tensor(value)}, tmp_path / "x.pt")
        ref = read_tree(tmp_path / "x.pt").root["step"]
        # The data on disk is spoilt: the value comes from the checksum.
        raw = bytearray((tmp_path / "x.pt").read_bytes())
        raw[ref.offset : ref.offset + 4] = b"\xff\xff\xff\xff"
        (tmp_path / "x.pt").write_bytes(bytes(raw))
        assert scalar(read_tree(tmp_path / "x.pt").root["step"]) == value


def test_a_changed_byte_anywhere_is_found(saved: Saved, tmp_path: Path) -> None:
    raw = (saved("newest", "z2-bf16") / "global_step3" / layout.shard_file(1, bf16=True)).read_bytes()
    path = tmp_path / "x.pt"
    for position in range(0, len(raw), 7):
        changed = bytearray(raw)
        changed[position] ^= 0x10
        path.write_bytes(bytes(changed))
        with pytest.raises(Damaged):
            everything(path)


def everything(path: Path) -> None:
    """All checks of one file."""
    tree = read_tree(path)
    assert isinstance(tree.archive, Archive)
    tree.archive.check_structure()
    for record in tree.archive.records.values():
        check_record(record)


class _Stub:
    def __init__(self, *args: Any) -> None:
        self.args = args


def _load_without_deepspeed(path: Path) -> Any:
    import pickle

    class _Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            return _Stub if module.startswith("deepspeed") else super().find_class(module, name)

    class _Module:
        Unpickler = _Unpickler
        load = staticmethod(pickle.load)

    return torch.load(path, pickle_module=_Module, weights_only=False)


def _compare(found: Any, expected: Any, where: tuple[Any, ...]) -> int:
    """Compare a tree with what torch loads; the number of tensors compared."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, TensorRef), where
        assert (found.shape, f"torch.{found.dtype}") == (tuple(expected.shape), str(expected.dtype)), where
        assert (found.stride, found.is_contiguous) == (tuple(expected.stride()), expected.is_contiguous()), where
        if found.is_contiguous:
            assert bytes(read_bytes(found)) == expected.detach().reshape(-1).view(torch.uint8).numpy().tobytes(), where
        return 1
    if isinstance(expected, dict):
        assert list(found) == list(expected), where
        return sum(_compare(found[key], value, (*where, key)) for key, value in expected.items())
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected), where
        return sum(_compare(one, two, (*where, at)) for at, (one, two) in enumerate(zip(found, expected, strict=True)))
    if not isinstance(expected, _Stub | torch.dtype):
        assert found == expected, where
    return 0
