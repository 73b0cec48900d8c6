"""The same state, saved by engines of different stages, precisions and numbers of ranks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Pools
from tests.support.results import values
from tests.support.trees import tree

#: Odd sizes, two groups, a frozen layer and tied weights: whatever breaks offsets.
MODEL = {"frozen": True, "tied": True}

States = Callable[..., Path]

_MADE: dict[str, Path] = {}


@pytest.fixture(scope="session")
def states(pools: Pools, tmp_path_factory: pytest.TempPathFactory) -> States:
    """``states(stage, precision="bf16", world=2, role="newest", **more)``: a folder with the tags ``a`` and ``later``.

    Shared by all tests: copy it before you change it.
    """

    def folder(stage: int, precision: str = "bf16", world: int = 2, role: str = "newest", **more: Any) -> Path:
        key = repr((stage, precision, world, role, sorted(more.items())))
        if key not in _MADE:
            made = tmp_path_factory.mktemp("state")
            wanted: dict[str, Any] = {
                "stage": stage,
                "precision": precision,
                "groups": 2,
                "model": MODEL,
                "more": 2,
                **more,
            }
            values(pools.get(role, world).run("tests.diff.saving:save_state", folder=str(made), **wanted))
            _MADE[key] = made
        return _MADE[key]

    return folder


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[Path], Path]:
    """``copied(folder)``: a copy of a checkpoint folder, to change."""

    def copy(folder: Path) -> Path:
        return shutil.copytree(folder, tmp_path / f"copy{len(os.listdir(tmp_path))}")

    return copy


def convert(targets: dict[Path, Path], role: str = "newest") -> None:
    """Run DeepSpeed's converter to universal checkpoints, for several tag folders at once."""
    environment = {"PYTHONPATH": str(tree(role).path), "DS_ACCELERATOR": "cpu", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    running = [
        subprocess.Popen([*command, "--input_folder", str(tag), "--output_folder", str(target)], env=environment,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for tag, target in targets.items()
    ]  # fmt: skip
    for one in running:
        output, _ = one.communicate(timeout=120)
        assert one.returncode == 0, output[-2000:]
