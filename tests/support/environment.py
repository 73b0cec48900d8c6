"""The environment of one rank process on CPU, and what a rank leaves behind outside it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import bygone
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from tests.support.trees import Tree

#: Everything else of the caller's environment stays outside, DSPATCH* variables above all.
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "CXX", "CC")

_SHARED_MEMORY = Path("/dev/shm")


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def rank_environment(
    tree: Tree, rank: int, world: int, port: int, extra: Mapping[str, str | None] | None = None
) -> dict[str, str]:
    """Variables for rank ``rank`` of ``world`` on one machine.

    Args:
        extra: variables on top; ``None`` removes one.
    """
    environ = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    environ |= {
        "PYTHONPATH": os.pathsep.join((str(tree.path), str(ROOT))),
        "TORCH_EXTENSIONS_DIR": str(tree.extensions),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        # The CPU accelerator asks `numactl`, which a machine may lack, unless it is told its device count.
        "LOCAL_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "CROSS_SIZE": "1",
        "CROSS_RANK": "0",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONFAULTHANDLER": "1",
    }
    if not tree.reads_own_files:
        environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
    if tree.bygone:
        environ[bygone.VARIABLE] = "1"
    for name, value in (extra or {}).items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value
    return environ


def remove_shared_memory(port: int) -> None:
    """Remove the shared-memory files of a job that had ``port`` as its master port; killed ranks leave 69 MB each.

    Names come from ``shm_initialize`` in DeepSpeed's ``csrc/cpu/comm/shm.cpp``: user id, master address and port, rank.
    """
    for left in _SHARED_MEMORY.glob(f"deepspeed_*_{os.getuid()}_127.0.0.1_{port}_*"):
        left.unlink(missing_ok=True)
