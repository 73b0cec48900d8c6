"""What shows only at the first step after a load, told before it is too late.

Both checks are hooks that torch offers, put on one module or one optimizer; the second takes itself off after its use.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from dspatch import log
from dspatch.activation import settings_in_force
from dspatch.errors import explain, shorten
from dspatch.live import outside_scheduler
from dspatch.live.attributes import base_optimizer
from dspatch.verdict.masters import stale_masters
from dspatch.verdict.running import current


class _WeightsWatch:
    """Looks at the masters when somebody has replaced the weights of an engine's module.

    Whoever pickles or copies the module gets a function of Python's own that does nothing, since a file of weights must
    not need dspatch to be read.
    """

    def __init__(self, engine: Any, still_on: Callable[[], bool]) -> None:
        self._engine = weakref.ref(engine)
        self._still_on = still_on

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")

    def __call__(self, module: Any, keys: Any) -> None:
        engine = self._engine()
        # DeepSpeed's own load does the masters next; the guard looks at them behind it.
        if engine is None or current() is not None or not self._still_on():
            return
        settings = settings_in_force()
        if settings.verify == "off" or {"load-guard", "*"} & set(settings.disable):
            return
        names = stale_masters(engine)
        if names:
            log.tell(settings.mode, f"{log.rank_label()} {_undone(names)}".strip())


def _undone(names: list[str]) -> str:
    return explain(
        "weights were replaced, but not the masters that the optimizer makes them from: the first step undoes it",
        expected="masters that the weights are the cast of",
        found=f"others, of {shorten(names)}",
        do="dspatch.refresh_masters(engine) after module.load_state_dict(...), or load through engine.load_checkpoint",
    )


def watch_weights(engine: Any, still_on: Callable[[], bool]) -> None:
    """Warn when weights are loaded into ``engine.module`` behind the optimizer's back.

    Args:
        engine: its optimizer has just been made.
        still_on: whether dspatch is still active.
    """
    register = getattr(engine.module, "register_load_state_dict_post_hook", None)
    if register is not None and not isinstance(engine.module, list):
        register(_WeightsWatch(engine, still_on))


def watch_outside_scheduler(engine: Any, rank: int) -> None:
    """Name a scheduler outside the engine, and warn if its next step would move the learning rate away.

    The comparison is made at the first optimizer step, when the caller has had the time to restore the scheduler.
    """
    scheduler = outside_scheduler.find(engine)
    if scheduler is None or rank != 0:
        return
    kind = type(scheduler).__name__
    log.logger().info("a %s outside the engine steps its optimizer; no DeepSpeed checkpoint has its state", kind)
    held = weakref.ref(scheduler)

    def at_first_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        handle.remove()
        if (one := held()) is None:
            return
        ours, theirs = outside_scheduler.rates(one)
        if ours and ours != theirs:
            log.tell(settings_in_force().mode, _moves(kind, ours, theirs))

    register = getattr(base_optimizer(engine), "register_step_pre_hook", None)
    if register is not None:
        handle = register(at_first_step)


def _moves(kind: str, ours: list[float], theirs: list[float]) -> str:
    return explain(
        f"the {kind} outside the engine was not restored: its next step moves the learning rate",
        expected=f"a scheduler at the learning rate of the checkpoint, {shorten(f'{rate:g}' for rate in theirs)}",
        found=f"one at {shorten(f'{rate:g}' for rate in ours)}",
        where=f"rank {os.environ.get('RANK', '0')}",
        do=(
            "save scheduler.state_dict() in client_state, and load it after engine.load_checkpoint",
            "or hand the scheduler to deepspeed.initialize(lr_scheduler=...)",
        ),
    )
