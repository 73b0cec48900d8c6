"""Declared intent: what the caller wants to be lost, so that it is no alarm."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from dspatch.errors import SettingsError, explain
from dspatch.verdict.request import COMPONENTS, DATA_PARTS

#: What may be declared: name -> the words it takes.
ALLOWED: dict[str, tuple[str, ...]] = {
    **{component: ("fresh", "any") for component in (*COMPONENTS, *DATA_PARTS)},
    "frozen": ("kept", "fresh", "any"),
    "nothing": ("ok",),
}

_lock = threading.Lock()
_declared: list[expect] = []


class expect:
    """Declare what a load may lose: ``with dspatch.expect(moments="fresh"): engine.load_checkpoint(...)``.

    It holds from the call on; used as a context manager it ends with the block. ``nothing="ok"`` makes a resume that
    finds nothing a fresh start ("resume if any"). Anything beyond what was declared still raises.

    Raises:
        SettingsError: a name or a word that does not exist; the message lists those that do.
    """

    def __init__(self, **declared: str) -> None:
        self.declared = _checked(declared)
        with _lock:
            _declared.append(self)

    def __enter__(self) -> expect:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            _declared.remove(self)


def in_force(written: str) -> dict[str, str]:
    """What holds now: ``DSPATCH_EXPECT`` as written, then every ``expect`` that has not ended.

    Raises:
        SettingsError: the variable is wrong.
    """
    found = parse(written)
    with _lock:
        for one in _declared:
            found.update(one.declared)
    return found


def parse(written: str) -> dict[str, str]:
    """``"moments=fresh,nothing=ok"`` as a dict.

    Raises:
        SettingsError: a name or a word that does not exist.
    """
    parts = [part.strip() for part in written.split(",") if part.strip()]
    return _checked({name.strip(): word.strip() for name, _, word in (part.partition("=") for part in parts)})


def _checked(declared: dict[str, Any]) -> dict[str, str]:
    for name, word in declared.items():
        if name not in ALLOWED or word not in ALLOWED[name]:
            allowed = ", ".join(f"{one}={'|'.join(words)}" for one, words in ALLOWED.items())
            raise SettingsError(
                explain(
                    "this intent cannot be declared",
                    expected=allowed,
                    found=f"{name}={word}",
                    do="correct dspatch.expect(...) or DSPATCH_EXPECT",
                )
            )
    return declared
