"""``dspatch.activate``, ``deactivate`` and ``status``: the same as the variables, from code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace

from dspatch import activation, log
from dspatch.activation import finder
from dspatch.errors import SettingsError, explain
from dspatch.patching.ledger import ARMED, NOT_TRIGGERED, LedgerRow
from dspatch.settings import CHOICES, NUMBERS, TEXTS, Settings, read

_PREFIX = "DSPATCH_"


def activate(**overrides: object) -> Settings:
    """Arm dspatch in this process, also after ``deactivate`` and after deepspeed was imported.

    Args:
        overrides: ``mode="warn"``, ``tags=``, ``unknown=``, ``verify=``, ``timeout=``, ``threads=``, ``disable=``
            (one id, or several), ``expect=``, ``report=``, ``log_level=``: what the ``DSPATCH_*`` variable of that name says,
            and stronger than it. Without any, the variables as they are now.

    Returns:
        The settings in force from now on. ``DSPATCH=0`` beats this call: then nothing is armed.

    Raises:
        SettingsError: an override has no such name or value, or a variable is wrong.
    """
    chosen = read({**os.environ, **_as_variables(overrides)})
    # The engine may be armed with the former settings; looking for deepspeed is enough for that. With the same ones it
    # stays armed, so that no thread finds DeepSpeed without its guard.
    if chosen.as_dict() != activation.settings_in_force().as_dict():
        _disarm_engine()
    activation.use(chosen)
    finder.arm(chosen)
    if chosen.switch == "off":
        log.warn_once("kill-switch", "activate() did nothing: DSPATCH is set to an off word, which beats code")
    return chosen


def deactivate() -> None:
    """Undo everything: DeepSpeed holds the very objects again that it held before. ``activate`` puts it back."""
    finder.disarm()
    _disarm_engine()


def status() -> list[LedgerRow]:
    """One row per patch and site: what became of it, and why. It looks at DeepSpeed's functions as they are now."""
    from dspatch.patching import engine

    rows = engine.status()
    if activation.settings_in_force().switch == "off":
        return [replace(row, reason="DSPATCH is off") for row in rows]
    if finder.is_waiting():
        return [replace(row, state=ARMED, reason="until deepspeed is imported") for row in rows]
    # Neither waiting nor armed. An engine that was never armed cannot tell this from an import that is yet to come.
    off = [row.state == NOT_TRIGGERED and not row.version for row in rows]
    return [replace(row, reason="deactivated") if was else row for row, was in zip(rows, off, strict=True)]


def _disarm_engine() -> None:
    if "dspatch.patching.engine" in sys.modules:
        from dspatch.patching import engine

        engine.disarm()


def _as_variables(overrides: dict[str, object]) -> dict[str, str]:
    allowed = [name.removeprefix(_PREFIX).lower() for name in (*CHOICES, *NUMBERS, *TEXTS)]
    for name in overrides:
        if name not in allowed:
            text = explain(
                f"activate() has no argument {name!r}", expected=f"one of {', '.join(allowed)}", do="correct the call"
            )
            raise SettingsError(text)
    return {_PREFIX + name.upper(): _as_text(value) for name, value in overrides.items() if value is not None}


def _as_text(value: object) -> str:
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(str(word) for word in value)
    return str(value)
