"""Real checkpoints for the offline tools, shared with tests/checkpoint, and a copy to damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.conftest import Saved, saved, version
from tests.support.pool import Pools

__all__ = ["saved", "version"]

Copied = Callable[..., Path]
Special = Callable[..., Path]

_SPECIAL: dict[tuple[str, str, str], Path] = {}


@pytest.fixture
def copied(saved: Saved, tmp_path: Path) -> Copied:
    """``copied(role, build, ...)``: as ``saved``, and the test may change it."""

    def copy(role: str, build: str, world: int = 2, **more: Any) -> Path:
        return shutil.copytree(saved(role, build, world, **more), tmp_path / "ckpt")

    return copy


@pytest.fixture(scope="session")
def special(pools: Pools, tmp_path_factory: pytest.TempPathFactory) -> Special:
    """``special(role, scenario, **kwargs)``: a folder that a scenario of ``saving`` here has saved; do not change it."""

    def folder(role: str, scenario: str, **kwargs: Any) -> Path:
        key = (role, scenario, repr(sorted(kwargs.items())))
        if key not in _SPECIAL:
            made = tmp_path_factory.mktemp(scenario)
            module = "tests.checkpoint.saving" if scenario in ("save", "save_experts") else "tests.offline.saving"
            for result in pools.get(role, 2).run(f"{module}:{scenario}", folder=str(made), **kwargs):
                assert result.error is None, result.error.traceback
            _SPECIAL[key] = made
        return _SPECIAL[key]

    return folder
