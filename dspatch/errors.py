"""The errors that dspatch raises, and the one place where their text is put together.

Every message answers the same five questions in the same order: what was expected, what was found, where, what to do
about it, and how to turn the error into a warning. Someone reading a cluster log at night finds the same thing in the
same place each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: How many names (parameters, files, ranks) a message spells out before it only counts the rest.
NAMES_SHOWN = 5

#: The usual last line of a message: the switch that lowers an error to a warning.
LOWER_TO_WARNING = "DSPATCH_MODE=warn"


class DspatchError(RuntimeError):
    """Base class of every error that dspatch raises."""


class SettingsError(DspatchError, ValueError):
    """A ``DSPATCH*`` variable, or an argument with the same meaning, holds a value that is not allowed."""


class MatrixError(DspatchError):
    """compat_matrix.yaml breaks a rule of its schema."""


class PatchNotApplicable(DspatchError):
    """A patch does not fit the DeepSpeed at hand, and strict mode refuses to load a checkpoint without it."""


class PatchFailed(DspatchError):
    """A patch fits, but could not be put in place; loading a checkpoint without it would be a silent risk."""


class LoadRefused(DspatchError):
    """The load was stopped before DeepSpeed touched the engine: the engine still holds what it held before."""


class NothingLoaded(LoadRefused):
    """There was nothing to load: no tag, no folder, or no training state in it."""


class LoadIncomplete(DspatchError):
    """DeepSpeed returned from the load, but a part of the training state is not what the files hold."""


class RankSilent(DspatchError):
    """One or more ranks did not answer within the time limit, so nothing can be said about them."""


def shorten(names: Iterable[object], shown: int = NAMES_SHOWN) -> str:
    """Join the first ``shown`` names and count the rest: ``a, b and 3 more``."""
    listed = [str(name) for name in names]
    if len(listed) <= shown:
        return ", ".join(listed)
    return f"{', '.join(listed[:shown])} and {len(listed) - shown} more"


def explain(
    headline: str,
    *,
    expected: str = "",
    found: str = "",
    where: str = "",
    do: str | Sequence[str] = "",
    lower: str = "",
) -> str:
    """Build a message in the fixed order of DESIGN 5; parts that are empty are left out.

    Args:
        headline: one sentence that says what is wrong.
        expected: what the caller asked for or the files hold.
        found: what is there instead.
        where: rank, host, file, parameters (the first few and a count).
        do: the exact call or command that helps; several lines for several ways out.
        lower: the setting that turns this error into a warning.
    """
    steps = [do] if isinstance(do, str) else list(do)
    lines = [headline]
    for label, text in (("expected", expected), ("found", found), ("where", where)):
        if text:
            lines.append(f"  {label + ':':<10}{text}")
    for position, step in enumerate(step for step in steps if step):
        lines.append(f"  {'do:' if position == 0 else '':<10}{step}")
    if lower:
        lines.append(f"  {'or:':<10}{lower} makes this a warning")
    return "\n".join(lines)
