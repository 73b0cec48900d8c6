"""The ``DSPATCH*`` environment variables, read once into one frozen ``Settings``.

Only ``os`` is imported: this file is read by ``import dspatch``, which has to stay nearly free. An unknown value is an
error that lists the allowed ones, because a mistyped ``DSPATCH_MODE=strcit`` must not quietly mean the default.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ON_WORDS = ("1", "on", "true", "yes")
OFF_WORDS = ("0", "off", "false", "no")

#: variable -> allowed words; the first one is the default.
CHOICES = {
    "DSPATCH_MODE": ("strict", "warn", "observe"),
    "DSPATCH_TAGS": ("resolve", "error"),
    "DSPATCH_UNKNOWN": ("observe", "apply", "skip", "error"),
    "DSPATCH_VERIFY": ("full", "bytes", "structure", "off"),
    "DSPATCH_TRUST": ("", "deepspeed"),
    "DSPATCH_LOG_LEVEL": ("", "DEBUG", "INFO", "WARNING", "ERROR"),
}

#: variable -> (default, smallest allowed value)
NUMBERS = {
    "DSPATCH_TIMEOUT": (60.0, 1.0),
    "DSPATCH_THREADS": (0.0, 0.0),
}

#: Read as text; their own rooms check what they mean.
TEXTS = ("DSPATCH_DISABLE", "DSPATCH_EXPECT", "DSPATCH_REPORT")

KNOWN = ("DSPATCH", *CHOICES, *NUMBERS, *TEXTS)

#: Variables that our own tools set for other purposes; they are no settings and no typing mistakes.
NOT_SETTINGS = ("DSPATCH_DEMO_",)


class Settings:
    """What the environment says, frozen. Attributes are plain words, so that ``doctor`` can print them.

    Attributes:
        switch: ``"on"``, ``"off"`` or ``"unset"``: the ``DSPATCH`` variable.
        mode: ``strict`` (lost state raises), ``warn`` (nothing raises) or ``observe`` (nothing raises, INFO only).
        tags: ``resolve`` or ``error``: what happens when DeepSpeed cannot build a path from a tag.
        unknown: what to do with a DeepSpeed function whose source is not known: ``observe``, ``apply``, ``skip``, ``error``.
        verify: how much of a load is measured: ``full``, ``bytes``, ``structure`` or ``off``.
        trust: ``deepspeed`` lets an old DeepSpeed read its own files under a short allow-list; empty: nothing is widened.
        log_level: level of the ``dspatch`` logger, empty to leave it alone.
        timeout: seconds that ranks wait for each other.
        threads: threads used for checksums; 0 lets dspatch choose.
        disable: patch ids that stay off; ``*`` is all of them.
        expect: declared intent, as written (see ``dspatch.expect``).
        report: path where rank 0 writes the JSON report, empty for none.
    """

    __slots__ = (
        "disable", "expect", "log_level", "mode", "report", "switch", "tags", "threads", "timeout", "trust", "unknown",
        "verify",
    )  # fmt: skip

    switch: str
    mode: str
    tags: str
    unknown: str
    verify: str
    trust: str
    log_level: str
    timeout: float
    threads: int
    disable: tuple[str, ...]
    expect: str
    report: str

    def __init__(self, **values: object) -> None:
        for name in self.__slots__:
            object.__setattr__(self, name, values[name])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"settings are frozen; set the DSPATCH* variable before `import dspatch` ({name})")

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"

    def as_dict(self) -> dict[str, object]:
        """The settings as plain data, for reports and for the comparison between ranks."""
        return {name: getattr(self, name) for name in self.__slots__}


def read(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the variables.

    Args:
        environ: the environment to read; the process's own by default.

    Raises:
        SettingsError: a value is not allowed, or a variable begins with ``DSPATCH_`` and is none of ours. The message
            lists what is allowed.
    """
    source = os.environ if environ is None else environ
    _refuse_unknown_names(source)
    chosen = {variable: _choice(source, variable, allowed) for variable, allowed in CHOICES.items()}
    numbers = {variable: _number(source, variable, *bounds) for variable, bounds in NUMBERS.items()}
    return Settings(
        switch=_switch(source),
        mode=chosen["DSPATCH_MODE"],
        tags=chosen["DSPATCH_TAGS"],
        unknown=chosen["DSPATCH_UNKNOWN"],
        verify=chosen["DSPATCH_VERIFY"],
        trust=chosen["DSPATCH_TRUST"],
        log_level=chosen["DSPATCH_LOG_LEVEL"],
        timeout=numbers["DSPATCH_TIMEOUT"],
        threads=int(numbers["DSPATCH_THREADS"]),
        disable=tuple(word.strip() for word in source.get("DSPATCH_DISABLE", "").split(",") if word.strip()),
        expect=source.get("DSPATCH_EXPECT", "").strip(),
        report=source.get("DSPATCH_REPORT", "").strip(),
    )


def _refuse_unknown_names(source: Mapping[str, str]) -> None:
    strangers = sorted(
        name
        for name in source
        if name.startswith("DSPATCH_") and name not in KNOWN and not name.startswith(NOT_SETTINGS)
    )
    if strangers:
        raise _error(f"{strangers[0]} is not a dspatch variable", f"one of {', '.join(KNOWN)}", strangers[0])


def _switch(source: Mapping[str, str]) -> str:
    written = source.get("DSPATCH", "").strip()
    word = written.lower()
    if not word:
        return "unset"
    if word in ON_WORDS:
        return "on"
    if word in OFF_WORDS:
        return "off"
    raise _error("DSPATCH has a value that is not allowed", f"one of {', '.join((*ON_WORDS, *OFF_WORDS))}", written)


def _choice(source: Mapping[str, str], variable: str, allowed: tuple[str, ...]) -> str:
    written = source.get(variable, "").strip()
    if not written:
        return allowed[0]
    for word in allowed:
        if written.lower() == word.lower():
            return word
    raise _error(
        f"{variable} has a value that is not allowed", f"one of {', '.join(word for word in allowed if word)}", written
    )


def _number(source: Mapping[str, str], variable: str, default: float, smallest: float) -> float:
    written = source.get(variable, "").strip()
    if not written:
        return default
    try:
        value = float(written)
    except ValueError:
        value = float("nan")
    if not smallest <= value < float("inf"):
        raise _error(f"{variable} has a value that is not allowed", f"a number, at least {smallest:g}", written)
    return value


def _error(headline: str, expected: str, found: str) -> Exception:
    # Imported here: an error is the only case that needs the message builder.
    from dspatch.errors import SettingsError, explain

    return SettingsError(
        explain(headline, expected=expected, found=repr(found), do="correct or unset the variable, then start again")
    )
