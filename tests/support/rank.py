"""One rank process of a pool: imports torch and DeepSpeed once, then runs scenario functions until its pipe closes.

Started by ``tests.support.pool`` as ``python -m tests.support.rank FD MODE`` with the rank's environment; speaks
pickles over the socket FD.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import importlib
import logging
import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from tests.support import bygone
from tests.support.results import LogLine, RankError, RankResult

#: A scenario is stopped from outside long before; this only keeps a lost collective from ending a scenario early.
_COLLECTIVE_LIMIT = datetime.timedelta(minutes=10)

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Job:
    """One scenario: ``module:function``, its keyword arguments, and variables for the time it runs."""

    target: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    environ: dict[str, str | None] = field(default_factory=dict)


class _Recorder(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.lines: list[LogLine] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(LogLine(record.levelno, record.name, record.getMessage()))


def main(descriptor: int, dspatch: str) -> None:
    """Come up, say so, then serve jobs."""
    _die_with_the_pool()
    pipe = Connection(descriptor)
    rank = int(os.environ["RANK"])
    try:
        reset = _come_up(dspatch)
    except BaseException as error:
        pipe.send_bytes(pickle.dumps(RankResult(rank, error=_described(error, "start"))))
        raise
    pipe.send_bytes(pickle.dumps(RankResult(rank, value="ready")))
    for number in iter(lambda: _next(pipe), None):
        result = _still_in_step(rank, number) if isinstance(number, int) else _perform(rank, number)
        pipe.send_bytes(_pickled(rank, result))
        if isinstance(number, Job):
            del result
            reset()
    # No interpreter shutdown: threads of process groups and open engines make it slow and, at times, endless.
    sys.stdout.flush()
    os._exit(0)


def _come_up(dspatch: str) -> Callable[[], None]:
    if dspatch == "startup":
        importlib.import_module("_dspatch_startup")
    elif dspatch == "import":
        importlib.import_module("dspatch")
    warnings.filterwarnings("ignore", category=FutureWarning)
    if bygone.VARIABLE in os.environ:
        bygone.stand_in()
    import deepspeed
    import torch
    from deepspeed.accelerator import get_accelerator

    torch.set_num_threads(1)
    # DeepSpeed refuses fp16 on its CPU accelerator, although everything that a checkpoint is about works there.
    accelerator = type(get_accelerator())
    if bygone.VARIABLE in os.environ:
        bygone.use_gloo()
    accelerator.is_fp16_supported = lambda self: True
    accelerator.supported_dtypes = lambda self: [torch.float32, torch.bfloat16, torch.float16]
    torch.distributed.all_gather_into_tensor = _at_once(torch.distributed.all_gather_into_tensor)
    deepspeed.init_distributed(dist_backend="gloo", timeout=_COLLECTIVE_LIMIT)
    return _reset_of_groups()


def _at_once(gather: Callable[..., Any]) -> Callable[..., Any]:
    """A gather that is over when it returns. Releases that wait for the last of several alone (G18) lose weights at random
    on gloo, whose threads finish in any order; the tests of everything else must not depend on that.
    """
    import torch

    def gathered(*args: Any, **kwargs: Any) -> Any:
        # gloo writes into views of what it gathers, which autograd refuses for weights outside of `no_grad`.
        with torch.no_grad():
            work = gather(*args, **kwargs)
        if work is not None:
            work.wait()
        return work

    return gathered


def _reset_of_groups() -> Callable[[], None]:
    """A function that makes DeepSpeed forget groups of the last scenario (experts, hpZ, model parallel).

    The clone of the world group stays: each new one would cost sockets and threads that are never given back.
    """
    groups = importlib.import_module("deepspeed.utils.groups")
    initial = {
        name: value
        for name, value in vars(groups).items()
        if (value is None or isinstance(value, dict | int)) and not name.startswith("__") and name != "_WORLD_GROUP"
    }
    copies = {name: dict(value) if isinstance(value, dict) else value for name, value in initial.items()}

    def reset() -> None:
        for name, value in copies.items():
            setattr(groups, name, dict(value) if isinstance(value, dict) else value)
        gc.collect()

    return reset


def _perform(rank: int, job: Job) -> RankResult:
    recorder, started = _Recorder(), time.monotonic()
    value, error = None, None
    with _listening(recorder), _variables(job.environ):
        try:
            module, _, function = job.target.partition(":")
            value = getattr(_scenarios(module), function)(**job.kwargs)
        except BaseException as raised:
            error = _described(raised, "raised")
            # The frames hold engines; they would live until the next scenario and cost its memory.
            traceback.clear_frames(raised.__traceback__)
    return RankResult(rank, value, error, tuple(recorder.lines), time.monotonic() - started)


def _scenarios(name: str) -> Any:
    """The module; one that imports a part of dspatch for its own use must not arm it in ranks that came up without."""
    was_here = "dspatch" in sys.modules
    module = importlib.import_module(name)
    if not was_here and "dspatch" in sys.modules:
        sys.modules["dspatch"].deactivate()
    return module


def _still_in_step(rank: int, number: int) -> RankResult:
    """Whether all ranks come to the same collective with the same number, so no message of a scenario is left over."""
    import torch
    import torch.distributed as dist

    try:
        seen = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(seen, torch.tensor([number], dtype=torch.int64))
    except RuntimeError as error:
        return RankResult(rank, value=False, error=_described(error, "raised"))
    return RankResult(rank, value=all(int(one) == number for one in seen))


@contextmanager
def _listening(recorder: _Recorder) -> Iterator[None]:
    logger = logging.getLogger("dspatch")
    before = logger.level
    logger.addHandler(recorder)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(recorder)
        logger.setLevel(before)


@contextmanager
def _variables(wanted: Mapping[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    _put(wanted)
    try:
        yield
    finally:
        _put(before)


def _put(wanted: Mapping[str, str | None]) -> None:
    for name, value in wanted.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _described(error: BaseException, kind: str) -> RankError:
    return RankError(
        kind=kind,
        type=type(error).__name__,
        bases=tuple(one.__name__ for one in type(error).__mro__),
        message=str(error),
        notes=tuple(getattr(error, "__notes__", ())),
        traceback="".join(traceback.format_exception(error)),
    )


def _pickled(rank: int, result: RankResult) -> bytes:
    try:
        return pickle.dumps(result)
    except Exception as error:
        return pickle.dumps(RankResult(rank, error=_described(error, "raised"), log_records=result.log_records))


def _next(pipe: Connection) -> Job | int | None:
    try:
        job: Job | int = pickle.loads(pipe.recv_bytes())
    except EOFError:
        return None
    return job


def _die_with_the_pool() -> None:
    """Ask Linux for SIGKILL when the parent ends: a rank that hangs would not see its pipe close."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    # Through the importable name: as `__main__` the classes above would not be those that the pool pickles.
    importlib.import_module("tests.support.rank").main(int(sys.argv[1]), sys.argv[2])
