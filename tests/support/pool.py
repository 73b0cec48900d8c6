"""Rank processes that stay alive between tests: torch and DeepSpeed cost seconds to import, a scenario does not.

``Pools.get(tree, world, dspatch=..., env=...)`` gives the pool for that combination, started on first use. A pool that
hung, lost a rank or fell out of step is killed and comes up again at its next use. The oldest pools are closed when too
many ranks are alive.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.support import trees
from tests.support.environment import free_port, rank_environment, remove_shared_memory
from tests.support.paths import ROOT
from tests.support.rank import Job
from tests.support.results import RankError, RankResult, ScenarioFailed

#: Ranks alive at once over all pools; each takes 0.4 GB or so.
MOST_RANKS = 10

_START_SECONDS = 180.0
_STARTS = 2
_STEP_SECONDS = 20.0
_SHOWN_OUTPUT = 4000


class RankPool:
    """``world`` rank processes of one DeepSpeed tree."""

    def __init__(self, tree: trees.Tree, world: int, dspatch: str | None, env: Mapping[str, str | None]) -> None:
        self.tree, self.world, self.dspatch, self.env = tree, world, dspatch, dict(env)
        self._ranks: list[_Rank] = []
        self._port = 0
        self._number = 0

    def run(
        self,
        target: str,
        *,
        timeout: float = 60.0,
        environ: Mapping[str, str | None] | None = None,
        per_rank: list[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> list[RankResult]:
        """Run one scenario on every rank.

        Args:
            target: ``package.module:function``, importable from the root of the checkout.
            timeout: seconds for the scenario; ranks that are not done by then give an error of kind ``hang``.
            environ: variables for the time of the scenario (``None`` removes one).
            per_rank: more keyword arguments, one mapping for each rank.
            kwargs: keyword arguments for the function; they are pickled.

        Returns:
            One result for each rank, in rank order. Nothing is raised for what happens in the scenario.

        Raises:
            ScenarioFailed: the ranks could not be started.
        """
        self._start()
        for rank, one in enumerate(self._ranks):
            own = per_rank[rank] if per_rank else {}
            one.send(Job(target, {**kwargs, **own}, dict(environ or {})))
        results = self._collect(timeout)
        failed = [result for result in results if result.error is not None]
        lost = any(result.error is not None and result.error.kind != "raised" for result in failed)
        if lost or len(failed) not in (0, self.world) or not self._in_step():
            self.kill()
        return results

    def kill(self) -> None:
        """End the rank processes, by their own process groups, and remove what they leave behind."""
        for one in self._ranks:
            one.kill()
        if self._ranks:
            remove_shared_memory(self._port)
        self._ranks = []

    @property
    def alive(self) -> bool:
        """Whether rank processes are up."""
        return bool(self._ranks)

    def _start(self) -> None:
        if self._ranks:
            return
        answers: list[RankResult] = []
        for _ in range(_STARTS):
            trees.drop_stale_locks(self.tree.extensions)
            self._port = free_port()
            self._ranks = [_Rank(self, rank, self._port) for rank in range(self.world)]
            answers = self._collect(_START_SECONDS)
            if all(answer.error is None for answer in answers):
                return
            self.kill()
        raise ScenarioFailed("\n".join(f"rank {one.rank} did not start: {one.error}" for one in answers))

    def _collect(self, seconds: float) -> list[RankResult]:
        until = time.monotonic() + seconds
        waiting = {one.pipe: one for one in self._ranks}
        results: dict[int, RankResult] = {}
        while waiting and (left := until - time.monotonic()) > 0:
            for pipe in wait(list(waiting), left):
                one = waiting.pop(pipe)  # type: ignore[call-overload]
                results[one.rank] = one.receive()
        for one in waiting.values():
            results[one.rank] = RankResult(
                one.rank, error=RankError("hang", message=f"no answer in {seconds:g} s", traceback=one.output())
            )
        return [results[rank] for rank in range(self.world)]

    def _in_step(self) -> bool:
        self._number += 1
        for one in self._ranks:
            one.send(self._number)
        return all(result.value is True for result in self._collect(_STEP_SECONDS))


class _Rank:
    """The parent's side of one rank process."""

    def __init__(self, pool: RankPool, rank: int, port: int) -> None:
        self.rank = rank
        mine, theirs = socket.socketpair()
        self._output = tempfile.TemporaryFile(prefix="rank-")  # noqa: SIM115 - lives as long as the process
        environ = rank_environment(pool.tree, rank, pool.world, port, pool.env)
        if pool.dspatch == "startup":
            environ.setdefault("DSPATCH", "1")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.rank", str(theirs.fileno()), str(pool.dspatch)],
            cwd=ROOT, env=environ, pass_fds=[theirs.fileno()], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        theirs.close()
        self.pipe = Connection(mine.detach())

    def send(self, job: Job | int) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send_bytes(pickle.dumps(job))

    def receive(self) -> RankResult:
        try:
            result: RankResult = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            code = self._process.wait()
            return RankResult(
                self.rank, error=RankError("crash", message=f"exit status {code}", traceback=self.output())
            )
        return result

    def output(self) -> str:
        """The end of what the rank wrote to stdout and stderr."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), _SHOWN_OUTPUT, max(0, size - _SHOWN_OUTPUT)).decode(errors="replace")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.pipe.close()
        self._output.close()


class Pools:
    """All pools of a test session, least recently used first."""

    def __init__(self) -> None:
        self._pools: OrderedDict[tuple[object, ...], RankPool] = OrderedDict()

    def get(
        self,
        tree: str | trees.Tree,
        world: int = 2,
        *,
        dspatch: str | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> RankPool:
        """The pool for a combination.

        Args:
            tree: a role of the matrix, or a tree that a test made.
            world: number of ranks.
            dspatch: how dspatch comes into the ranks: ``"import"`` (before DeepSpeed), ``"startup"`` (through the
                startup file, with ``DSPATCH=1``) or None (not at all, the scenario may still import it).
            env: variables for the life of the processes; ``None`` removes one.
        """
        found = trees.tree(tree) if isinstance(tree, str) else tree
        key = (found.path, world, dspatch, tuple(sorted((env or {}).items(), key=str)))
        if key not in self._pools:
            self._pools[key] = RankPool(found, world, dspatch, env or {})
        self._pools.move_to_end(key)
        self._make_room(self._pools[key])
        return self._pools[key]

    def close(self) -> None:
        """End all rank processes."""
        for pool in self._pools.values():
            pool.kill()

    def _make_room(self, wanted: RankPool) -> None:
        alive = [pool for pool in self._pools.values() if pool.alive and pool is not wanted]
        while alive and sum(pool.world for pool in alive) + wanted.world > MOST_RANKS:
            alive.pop(0).kill()


def shared_memory_left() -> list[Path]:
    """Shared-memory files of DeepSpeed ranks on this machine, for a test that none of ours stay."""
    return sorted(Path("/dev/shm").glob("deepspeed_*"))
