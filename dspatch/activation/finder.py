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

    from dspatch.settings import Settings

NAME = "deepspeed"


class FirstSight:
    """Starts the engine once, just before ``deepspeed`` is imported, and is gone.

    An exception of the engine does not come out where somebody only looks whether deepspeed is installed, as many
    libraries do; it is raised by the import, and again by each further one.

    ``sys.meta_path`` is changed by single calls only: other threads put finders there, which must not get lost.
    """

    def __init__(self) -> None:
        self._settings: Settings | None = None
        self._lock = allocate_lock()
        self._busy_thread = 0

    def wait(self, settings: Settings) -> None:
        """Be there for the next import; the engine gets these settings."""
        self._settings = settings
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def leave(self) -> None:
        """Be there no more."""
        while self in sys.meta_path:
            try:
                sys.meta_path.remove(self)
            except ValueError:  # another thread did
                break

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have for deepspeed, those included that the engine has just added."""
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
        if spec is None or self not in sys.meta_path or self._settings is None:
            return spec  # not installed, or another thread was faster
        try:
            _start_engine(self._settings)
        except Exception as error:
            spec.loader = _Refusal(error)  # type: ignore[assignment]
            return spec
        self.leave()
        return find_spec(NAME)


class _Refusal:
    """A loader that raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        raise self._error

    def exec_module(self, module: ModuleType) -> None:
        raise self._error


_FIRST_SIGHT = FirstSight()


def arm(settings: Settings) -> None:
    """Have DeepSpeed patched when it is imported; at once if it is already. With ``DSPATCH=0`` only say that, then."""
    if NAME not in sys.modules:
        _FIRST_SIGHT.wait(settings)
    if NAME in sys.modules:  # also if another thread imported it just then
        _FIRST_SIGHT.leave()
        _start_engine(settings)


def disarm() -> None:
    """Stop waiting."""
    _FIRST_SIGHT.leave()


def is_waiting() -> bool:
    """Whether deepspeed has not been seen yet."""
    return _FIRST_SIGHT in sys.meta_path


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
