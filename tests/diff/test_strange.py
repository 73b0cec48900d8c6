"""Files that are valid and absurd, mutated, or of model-parallel ranks: a clear answer, soon, and never an exception."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.diff.comparing import diff, same
from tests.diff.conftest import States
from tests.diff.editing import rewrite
from tests.support import damage


def _nested() -> Any:
    deep: Any = []
    for _ in range(60):
        deep = [deep, deep]
    return deep


@pytest.mark.parametrize(
    "change",
    [{"param_shapes": [{"a": ("x", 3)}]}, {"param_shapes": [{"a": (0,), "b": (1 << 60, 1 << 60)}]}, {"param_shapes": [3]},
     {"global_steps": 1 << 20000}, {"global_steps": "many"}, {"buffer_names": [[1]]}, {"shared_params": {1: [2]}},
     {"lr_scheduler": _nested()}, {"note": _nested(), "more": {1: {2, 3}}}, {"frozen_param_shapes": {"first.bias": (-1,)}},
     {"optimizer": {"state": {0: 1}, "param_groups": [{"params": [5]}]}}],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
@pytest.mark.parametrize("stage", [2, 3])
def test_absurd_trees(change: dict[str, Any], stage: int, states: States, tmp_path: Path) -> None:
    folder = shutil.copytree(states(stage) / "a", tmp_path / "b" / "a")
    for file in folder.glob("*model_states.pt"):
        rewrite(file, lambda tree: tree.update(change))
    began = time.monotonic()
    found = diff(states(stage) / "a", folder)
    # Some of these stand where a whole tag says nothing that is compared.
    harmless = change.keys() & {"shared_params", "optimizer", "frozen_param_shapes"}
    assert found.code in ((0, 1, 3) if harmless else (1, 3)), found.data.get("answer")
    assert found.data or found.errors.startswith("dspatch: ")
    assert "Traceback" not in found.errors
    assert time.monotonic() - began < 5


def test_mutated_files(states: States, tmp_path: Path) -> None:
    numbers = random.Random(5)
    told = set()
    for number in range(60):
        whole = states((0, 2, 3)[number % 3]) / "a"
        folder = shutil.copytree(whole, tmp_path / str(number) / "a")
        file = numbers.choice(sorted(folder.glob("*.pt")))
        if number % 2:
            damage.cut(file, numbers.random())
        else:
            raw = bytearray(file.read_bytes())
            for _ in range(3):
                raw[numbers.randrange(len(raw))] ^= 1 << numbers.randrange(8)
            file.write_bytes(bytes(raw))
        found = diff(whole, folder)
        assert found.data, found.errors
        assert found.code == 3 or not number % 2, "a file that was cut cannot be equal"
        told.add(found.relation)
    assert {"unknown", "changed"} <= told


def test_slices_of_model_parallel_ranks(tmp_path: Path) -> None:
    def save(folder: Path, ranks: int, change: float = 0.0) -> Path:
        whole = torch.arange(24.0).reshape(6, 4)
        whole[5, 3] += change
        folder.mkdir(parents=True)
        for rank, part in enumerate(whole.chunk(ranks)):
            held = {"module": {"shared": part.clone(), f"own.{rank}": torch.ones(5)}, "buffer_names": [], "dp_world_size": 1,
                    "mp_world_size": ranks, "global_steps": 1, "global_samples": 1, "skipped_steps": 0, "ds_config": {},
                    "ds_version": "0", "optimizer": None, "lr_scheduler": None}  # fmt: skip
            torch.save(held, folder / f"mp_rank_{rank:02d}_model_states.pt")
        return folder

    two, three = save(tmp_path / "1/a", 2), save(tmp_path / "2/a", 3)
    same(two, save(tmp_path / "3/a", 2))
    found = diff(two, save(tmp_path / "4/a", 2, change=1.0))
    assert found.parameters == [("weights", "", "shared (model-parallel rank 1)", "differs")]
    assert found.parameter("weights", "shared (model-parallel rank 1)")["at"] == 11
    found = diff(two, three)
    sliced = [f"shared (model-parallel rank {rank})" for rank in (0, 0, 1, 1, 2)]
    assert [(one["name"], one["outcome"]) for one in sorted(found.data["parameters"], key=lambda one: str(one["name"]))] == [
        ("own.2", "only in B"), *((name, "not compared") for name in sliced)
    ]  # fmt: skip
