"""How dspatch gets into a process: on import, from a startup file, by a command.

This file holds the settings in force, which is all that ``import dspatch`` needs besides the finder. The rest of the
room is imported by those who use it.
"""

from __future__ import annotations

from dspatch import settings as _settings
from dspatch.activation import finder as _finder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dspatch.settings import Settings


class _InForce:
    settings: Settings | None = None


def on_import() -> None:
    """What ``import dspatch`` does: read the variables, arm unless ``DSPATCH`` says no. A reload changes nothing.

    Raises:
        SettingsError: a variable holds a value that is not allowed.
    """
    if _InForce.settings is None:
        chosen = _settings.read()
        _finder.arm(chosen)
        use(chosen)  # last: where arming raises, importing dspatch again must not pass for armed


def settings_in_force() -> Settings:
    """The settings in force; read from the environment when nobody has yet."""
    if _InForce.settings is None:
        _InForce.settings = _settings.read()
    return _InForce.settings


def use(settings: Settings) -> None:
    """Put other settings in force, for everything that asks from now on."""
    _InForce.settings = settings
