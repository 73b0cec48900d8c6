"""dspatch makes a lossy DeepSpeed resume loud.

``import dspatch`` at the top of train.py is all: from then on every ``engine.load_checkpoint()`` is measured against
the files of its tag, on every rank. The import costs next to nothing; everything else waits until deepspeed is imported.
"""

from __future__ import annotations

import sys

from dspatch import activation as _activation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dspatch.activation.control import activate, deactivate, status
    from dspatch.errors import (
        DspatchError,
        LoadIncomplete,
        LoadRefused,
        MatrixError,
        NothingLoaded,
        PatchFailed,
        PatchNotApplicable,
        RankSilent,
        SettingsError,
    )
    from dspatch.settings import Settings
    from dspatch.verdict.intent import expect
    from dspatch.verdict.masters import refresh_masters
    from dspatch.verdict.report import LoadReport
    from dspatch.verdict.session import last_report
    from dspatch.verdict.verify import verify_after_load

    __version__: str

#: public name -> the module that it lives in, imported when the name is first used.
_HOME = {
    "activate": "dspatch.activation.control",
    "deactivate": "dspatch.activation.control",
    "status": "dspatch.activation.control",
    "expect": "dspatch.verdict.intent",
    "last_report": "dspatch.verdict.session",
    "refresh_masters": "dspatch.verdict.masters",
    "verify_after_load": "dspatch.verdict.verify",
    "LoadReport": "dspatch.verdict.report",
    "DspatchError": "dspatch.errors",
    "LoadIncomplete": "dspatch.errors",
    "LoadRefused": "dspatch.errors",
    "MatrixError": "dspatch.errors",
    "NothingLoaded": "dspatch.errors",
    "PatchFailed": "dspatch.errors",
    "PatchNotApplicable": "dspatch.errors",
    "RankSilent": "dspatch.errors",
    "SettingsError": "dspatch.errors",
}

__all__ = [
    "DspatchError",
    "LoadIncomplete",
    "LoadRefused",
    "LoadReport",
    "MatrixError",
    "NothingLoaded",
    "PatchFailed",
    "PatchNotApplicable",
    "RankSilent",
    "SettingsError",
    "__version__",
    "activate",
    "deactivate",
    "expect",
    "last_report",
    "refresh_masters",
    "settings",
    "status",
    "verify_after_load",
]


# Defined after the submodule of the same name was imported, and so the one that `dspatch.settings` means.
def settings() -> Settings:
    """The settings in force: the ``DSPATCH*`` variables as they were at import, or what ``activate`` was told since."""
    return _activation.settings_in_force()


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            value: object = version("dspatch")
        except PackageNotFoundError as error:  # only the folder is on the path; `hasattr` must not raise
            raise AttributeError("dspatch is not installed, so it has no version") from error
    elif name in _HOME:
        __import__(_HOME[name])
        value = getattr(sys.modules[_HOME[name]], name)
    else:
        raise AttributeError(f"module 'dspatch' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if getattr(sys, "argv", [])[:1] == ["-m"]:  # so it is while `python -m PACKAGE` imports the package
    from dspatch.activation import dash_m as _dash_m

    _dash_m.prepare()
_activation.on_import()
