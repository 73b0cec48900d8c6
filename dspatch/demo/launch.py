"""Start the ranks of one demo job, wait for them within a time limit, and end them all if one does not come back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROGRAM = Path(__file__).with_name("rank.py")

#: Seconds for one job; the first job of a DeepSpeed without a built operator compiles it for up to a minute.
LIMIT = 240.0


@dataclass(frozen=True)
class Tree:
    """Where a DeepSpeed comes from; both empty: the environment's own.

    Attributes:
        path: folder that holds the ``deepspeed`` package.
        extensions: folder for its compiled operators.
    """

    path: str = ""
    extensions: str = ""

    @classmethod
    def parse(cls, text: str) -> Tree:
        """From ``PATH`` or ``PATH,EXTENSIONS``."""
        path, _, extensions = text.partition(",")
        return cls(path, extensions)


@dataclass(frozen=True)
class Outcome:
    """What a job came to.

    Attributes:
        losses: in the order of its actions.
        errors: for each rank, the text of what it raised, or None.
        said: what the logger ``dspatch`` said on rank 0, at INFO and above.
    """

    losses: list[float]
    errors: list[str | None]
    said: list[str]


class JobFailed(RuntimeError):
    """The ranks of a job ended without a result; the message has the end of their output."""


def run(tree: Tree, world: int, job: Mapping[str, Any], variables: Mapping[str, str], limit: float = LIMIT) -> Outcome:
    """Run one job on ``world`` ranks.

    Args:
        job: see ``rank.py``; ``result`` is filled in here.
        variables: ``DSPATCH*`` variables for the ranks.
        limit: seconds.

    Raises:
        JobFailed: no result within ``limit``, or a rank crashed.
    """
    with tempfile.TemporaryDirectory(prefix="dspatch-demo-") as scratch:
        result, written, output = (Path(scratch, name) for name in ("result.json", "job.json", "output.txt"))
        written.write_text(json.dumps({**job, "result": str(result)}), encoding="utf-8")
        port = _free_port()
        with output.open("wb") as sink:
            ranks = [
                subprocess.Popen(
                    [sys.executable, str(_PROGRAM), str(written)],
                    env=_environment(tree, rank, world, port, variables),
                    stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True,
                )
                for rank in range(world)
            ]  # fmt: skip
            try:
                _wait(ranks, limit)
            finally:
                _end(ranks, port)
        if not result.exists():
            raise JobFailed(output.read_text(encoding="utf-8", errors="replace")[-3000:])
        answer = json.loads(result.read_text(encoding="utf-8"))
    return Outcome(answer["losses"], answer["error"], answer["said"])


def _wait(ranks: list[subprocess.Popen[bytes]], limit: float) -> None:
    until = time.monotonic() + limit
    while time.monotonic() < until and any(rank.poll() is None for rank in ranks):
        if any(rank.poll() not in (None, 0) for rank in ranks):
            return
        time.sleep(0.05)


def _end(ranks: list[subprocess.Popen[bytes]], port: int) -> None:
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()
    # Ranks that were killed leave 69 MB each; the name is made in DeepSpeed's csrc/cpu/comm/shm.cpp.
    for left in Path("/dev/shm").glob(f"deepspeed_*_{os.getuid()}_127.0.0.1_{port}_*"):
        left.unlink(missing_ok=True)


def _environment(tree: Tree, rank: int, world: int, port: int, variables: Mapping[str, str]) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DSPATCH")}
    if tree.path:
        environ["PYTHONPATH"] = tree.path
    if tree.extensions:
        environ["TORCH_EXTENSIONS_DIR"] = tree.extensions
    return environ | {
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        # DeepSpeed before its own `weights_only=False` cannot read its files with a newer torch without this.
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",
        "LOCAL_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        **variables,
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
