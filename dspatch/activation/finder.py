"""Waits for ``deepspeed`` to be imported, at no cost: one small finder on ``sys.meta_path``.

wrapt, PyYAML and packaging cost more to import than many scripts take to run, so they wait for the first sight of
deepspeed, when torch is about to be loaded and nobody notices them. Only ``sys`` and built-in modules are imported
here.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock, get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from _typeshed.importlib import MetaPathFinderProtocol

    from dspatch.settings import Settings

NAME = "deepspeed"


class FirstSight:
    """Calls ``on_sight`` once, just before ``deepspeed`` is imported, and is gone.

    An exception of ``on_sight`` does not come out where somebody only looks whether deepspeed is installed, as many
    libraries do; it is raised by the import, and again by each further one.
    """

    def __init__(self, on_sight: Callable[[], None]) -> None:
        self._on_sight = on_sight
        self._lock = allocate_lock()
        self._busy_thread = 0

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have for deepspeed, those included that ``on_sight`` has just added."""
        if fullname != NAME or self._busy_thread == get_ident():
            return None
        from importlib.util import find_spec

        # Others wait until the patches are armed. Nothing that is imported meanwhile imports deepspeed.
        with self._lock:
            self._busy_thread = get_ident()
            try:
                return self._seen(find_spec)
            finally:
                self._busy_thread = 0

    def _seen(self, find_spec: Callable[[str], ModuleSpec | None]) -> ModuleSpec | None:
        spec = find_spec(NAME)
        if spec is None:
            return None
        if self not in sys.meta_path:  # another thread was faster, or armed anew: whoever waits now is asked
            return find_spec(NAME)
        try:
            self._on_sight()
        except Exception as error:
            spec.loader = _Refusal(error)  # type: ignore[assignment]
            return spec
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        return find_spec(NAME)


class _Refusal:
    """A loader that raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        raise self._error

    def exec_module(self, module: ModuleType) -> None:
        raise self._error


def arm(settings: Settings) -> None:
    """Have DeepSpeed patched when it is imported; at once if it is already. With ``DSPATCH=0`` only say that, then."""
    if NAME not in sys.modules:
        # In one step: an import in another thread must not slip through.
        sys.meta_path[:] = [FirstSight(lambda: _start_engine(settings)), *_other_finders()]
    if NAME in sys.modules:  # also if another thread imported it just then
        disarm()
        _start_engine(settings)


def disarm() -> None:
    """Stop waiting."""
    sys.meta_path[:] = _other_finders()


def _other_finders() -> list[MetaPathFinderProtocol]:
    return [finder for finder in sys.meta_path if not isinstance(finder, FirstSight)]


def is_waiting() -> bool:
    """Whether deepspeed has not been seen yet."""
    return any(isinstance(finder, FirstSight) for finder in sys.meta_path)


def _start_engine(settings: Settings) -> None:
    from dspatch import log

    log.set_level(settings.log_level)
    if settings.switch == "off":
        log.logger().info("off: DSPATCH is set to an off word, nothing is patched and no load is checked")
        return
    try:
        from dspatch.patching import engine

        engine.arm(settings)
    except Exception as error:
        # The engine keeps its own failures to itself; this is a broken installation (no wrapt, no PyYAML).
        from dspatch.errors import LOWER_TO_WARNING, PatchFailed, explain

        text = explain(
            "dspatch could not start, so no checkpoint load would be checked",
            found=f"{type(error).__name__}: {error}",
            do=("install dspatch with its dependencies: pip install dspatch", "or set DSPATCH=0 to go without it"),
            lower=LOWER_TO_WARNING,
        )
        if settings.mode == "strict":
            raise PatchFailed(text) from error
        log.logger().error("%s", text, exc_info=error)
