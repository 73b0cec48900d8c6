"""Real checkpoints, written by real releases once for each test session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import trees
from tests.support.pool import Pools

#: Builds of engines that between them write every form of file.
BUILDS: dict[str, dict[str, Any]] = {
    **{f"z{stage}-{precision}": {"stage": stage, "precision": precision}
       for stage in (1, 2, 3) for precision in ("bf16", "fp16")},
    "z0-bf16": {"stage": 0, "precision": "bf16"},
    "z0-fp32": {"stage": 0, "precision": "fp32"},
    **{f"z{stage}-rich": {"stage": stage, "precision": "bf16", "groups": 2, "scheduler": "warmup",
                          "model": {"frozen": True, "tied": True}, "client": {"epoch": 3, "note": "π"}}
       for stage in (2, 3)},
}  # fmt: skip

Saved = Callable[..., Path]

#: What this session has saved, for all folders of tests that use the fixture.
_MADE: dict[tuple[str, str, int, str], Path] = {}


@pytest.fixture(scope="session")
def saved(pools: Pools, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """``saved(role, build, world=2, **more)``: the folder of a checkpoint with two tags. Do not change it: copy it."""

    def folder(role: str, build: str, world: int = 2, **more: Any) -> Path:
        key = (role, build, world, repr(sorted(more.items())))
        if key not in _MADE:
            _MADE[key] = tmp_path_factory.mktemp(f"{role}-{build}")
            results = pools.get(role, world).run(
                "tests.checkpoint.saving:save", folder=str(_MADE[key]), **{"more": 2, **BUILDS[build], **more}
            )
            for result in results:
                assert result.error is None, result.error.traceback
        return _MADE[key]

    return folder


@pytest.fixture(scope="session")
def version() -> Callable[[str], str]:
    """The release that plays a role."""
    return lambda role: trees.roles()[role]
