"""Which DeepSpeed release is imported. Asked while deepspeed is still half imported: ``__version__`` is not set yet."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from dspatch.errors import MatrixError
from dspatch.patching.ranges import parse_version

#: What DeepSpeed's own version file falls back to in a source tree (deepspeed/git_version_info.py).
_NO_VERSION = "0.0.0"


def imported_version(package: ModuleType) -> str | None:
    """Version of the distribution that the imported ``deepspeed`` package belongs to.

    Only metadata lying beside the package counts: with several copies on the path, another copy's version would be a
    lie. That covers site-packages and ``pip install --target`` folders.

    Returns:
        The version, or None when there is none that can be trusted: a source tree (also an editable install of one,
        whose metadata may be older than its code), two different ones, ``0.0.0``. Bodies alone decide then.
    """
    folders = [Path(folder).parent for folder in getattr(package, "__path__", ())]
    return version_beside(folders)


def version_beside(folders: Iterable[Path]) -> str | None:
    """Version of the ``deepspeed`` distribution whose metadata lies in one of ``folders``; None as above."""
    from importlib.metadata import distributions

    found: set[str] = set()
    for folder in folders:
        if (folder / "setup.py").exists():
            continue
        found |= {str(item.version) for item in distributions(name="deepspeed", path=[str(folder)])}
    version = found.pop() if len(found) == 1 else None
    return version if version is not None and _is_real(version) else None


def _is_real(version: str) -> bool:
    try:
        return parse_version(version).public != _NO_VERSION
    except MatrixError:
        return False
