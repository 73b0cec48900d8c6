"""Every order of import, activation, deactivation, reload and foreign wrapping, up to a length, in one process.

Run as ``python -m tests.patching.sequences LENGTH`` with a deepspeed package first on the path. After every step the
engine is compared with what it has to be: the patch runs exactly once per call if dspatch is active, and not at all if
it is not; and without foreign wrappers the attribute is then the very object that DeepSpeed defined.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

import wrapt

from dspatch.patching.engine import PatchEngine
from dspatch.patching.imports import _AgainFinder
from dspatch.patching.wrapper import find_wrapper
from tests.patching.fakes import ENGINE, make_matrix, make_row, settings
from tests.patching.wrappers import CALLS

STEPS = ("import", "arm", "disarm", "reload", "again", "proxy", "closure")


class Walk:
    """One sequence of steps, each followed by the comparison."""

    def __init__(self) -> None:
        self.engine = PatchEngine()
        self.armed = False
        self.foreign: list[str] = []
        _forget_deepspeed()

    @property
    def module(self) -> Any:
        return sys.modules.get(ENGINE)

    def step(self, name: str) -> None:
        getattr(self, f"do_{name}")()
        if self.module is not None:
            self.compare()
        states = {row.state for row in self.engine.status()} if self.engine._ledger else {"not triggered"}
        loaded = self.module is not None
        assert states == {("applied" if loaded else "armed") if self.armed else "not triggered"}, states

    def end(self) -> None:
        """Leave nothing for the next walk."""
        self.engine.disarm()
        sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder) is not _AgainFinder]

    def compare(self) -> None:
        owner = self.module.DeepSpeedEngine
        attribute = vars(owner)["load_checkpoint"]
        CALLS.clear()
        assert owner().load_checkpoint("folder", tag="t") == ("folder", "t")
        assert len(CALLS) == int(self.armed), f"{len(CALLS)} calls"
        if not self.armed and not self.foreign:
            assert attribute is self.module.original
        if not self.armed and "closure" not in self.foreign:
            assert find_wrapper(attribute, "load-note") is None

    def do_import(self) -> None:
        importlib.import_module(ENGINE)
        self.module.original = getattr(self.module, "original", None) or _plain(self.module)

    def do_arm(self) -> None:
        self.engine.arm(settings(), make_matrix(make_row()))
        self.armed = True

    def do_disarm(self) -> None:
        self.engine.disarm()
        self.armed = False

    def do_reload(self) -> None:
        if self.module is not None:
            importlib.reload(self.module)
            self.foreign.clear()
            self.module.original = _plain(self.module)

    def do_again(self) -> None:
        """Forget the modules and import them again, as test-suites do."""
        _forget_deepspeed()
        self.foreign.clear()
        self.do_import()

    def do_proxy(self) -> None:
        """Another tool that uses wrapt, on top of whatever is there."""
        if self.module is not None:
            wrapt.wrap_function_wrapper(self.module, "DeepSpeedEngine.load_checkpoint", _pass_on)
            self.foreign.append("proxy")

    def do_closure(self) -> None:
        """Another tool that reads the method from the class and puts a plain function there."""
        if self.module is not None:
            owner = self.module.DeepSpeedEngine
            owner.load_checkpoint = _closure_around(owner.load_checkpoint)
            self.foreign.append("closure")


def _pass_on(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return wrapped(*args, **kwargs)


def _closure_around(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return traced


def _plain(module: Any) -> Any:
    """The function that the module's code defined, under the wrapper that may be on it."""
    attribute = vars(module.DeepSpeedEngine)["load_checkpoint"]
    ours = find_wrapper(attribute, "load-note")
    return attribute if ours is None else ours.__wrapped__


def _forget_deepspeed() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "deepspeed"]:
        del sys.modules[name]


def main(length: int) -> None:
    """Walk all sequences of ``length`` steps."""
    count = 0
    for steps in itertools.product(STEPS, repeat=length):
        walk = Walk()
        for position, name in enumerate(steps):
            try:
                walk.step(name)
            except AssertionError as error:
                raise AssertionError(f"after {' '.join(steps[: position + 1])}: {error}") from error
        walk.end()
        count += 1
    print(count)


if __name__ == "__main__":
    main(int(sys.argv[1]))
