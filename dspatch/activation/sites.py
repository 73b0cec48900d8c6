"""The startup files of dspatch and the folders of an interpreter that they belong into."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

#: Read by Python at start in every site folder, and the module that they call.
STARTUP_FILES = ("_dspatch_startup.py", "dspatch.pth", "dspatch.start")
SITECUSTOMIZE = "sitecustomize.py"

#: Folder with a sitecustomize for PYTHONPATH. Its name is no module name, so nothing imports it by accident.
PRIVATE_SITE = Path(__file__).parent / "private-site"

#: In every file that dspatch writes; without it a file is somebody else's.
_MARK = "dspatch"
_SITECUSTOMIZE_MARK = "# written for dspatch"

_PROBE = """
import json, sys
found = sys.modules.get("sitecustomize")
print(json.dumps({"sitecustomize": getattr(found, "__file__", None), "started": "_dspatch_startup" in sys.modules,
                  "path": sys.path}))
"""


@dataclass(frozen=True)
class Started:
    """How a fresh process of this interpreter starts with ``DSPATCH=1``.

    Attributes:
        sitecustomize: the file of the ``sitecustomize`` that is in force, None if there is none.
        started: whether dspatch's startup module was called.
        path: its ``sys.path``.
    """

    sitecustomize: str | None
    started: bool
    path: tuple[str, ...]


def probe() -> Started:
    """Start a process of this interpreter and look.

    Raises:
        OSError: it does not start, or not within a minute.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env={**os.environ, "DSPATCH": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        raise OSError(f"{sys.executable} could not be asked how it starts: {error}") from error
    return Started(found["sitecustomize"], found["started"], tuple(found["path"]))


def folders() -> list[Path]:
    """The folders in which this interpreter reads startup files, the preferred one first."""
    named = [sysconfig.get_path("purelib"), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        named.append(site.getusersitepackages())
    known = {os.path.realpath(name) for name in (*site.getsitepackages(), site.getusersitepackages())}
    return [Path(name) for name in dict.fromkeys(named) if os.path.realpath(name) in known]


def writable(candidates: list[Path]) -> Path | None:
    """The first folder that can be written to; the user's own may still have to be made."""
    for folder in candidates:
        existing = folder
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if os.access(existing, os.W_OK | os.X_OK) and (folder.is_dir() or _is_user_site(folder)):
            return folder
    return None


def _is_user_site(folder: Path) -> bool:
    return os.path.realpath(folder) == os.path.realpath(site.getusersitepackages())


def has_startup_files() -> bool:
    """Whether the interpreter that runs this starts dspatch by itself when ``DSPATCH`` is on."""
    return any((folder / "dspatch.pth").is_file() for folder in folders())


def startup_texts() -> dict[str, str]:
    """File name -> text of each startup file, from this installation.

    Raises:
        OSError: the installation has none (a bare copy of the package folder).
    """
    # Beside the package: in the tree for editable installs, where a copy in site-packages may be older than the tree.
    source = Path(__file__).resolve().parents[2]
    absent = [name for name in STARTUP_FILES if not (source / name).is_file()]
    if absent:
        raise FileNotFoundError(f"{absent[0]} is not in {source}: run `pip install` on dspatch")
    return {name: (source / name).read_text(encoding="utf-8") for name in STARTUP_FILES}


def sitecustomize_text() -> str:
    """Text of the sitecustomize for one interpreter's site-packages."""
    text = (PRIVATE_SITE / SITECUSTOMIZE).read_text(encoding="utf-8")
    return text.replace("CHECK_INTERPRETER = True", "CHECK_INTERPRETER = False")


def is_ours(path: Path) -> bool:
    """Whether dspatch wrote this file."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return (_SITECUSTOMIZE_MARK if path.name == SITECUSTOMIZE else _MARK) in text


def is_pips(path: Path) -> bool:
    """Whether the file belongs to the installed wheel, so that ``pip uninstall`` takes it away."""
    try:
        files = metadata.distribution("dspatch").files or []
    except metadata.PackageNotFoundError:
        return False
    theirs = [os.path.realpath(str(file.locate())) for file in files if file.name == path.name]
    return os.path.realpath(path) in theirs


def compiled(path: Path) -> list[Path]:
    """The bytecode files of a module file."""
    return list(path.parent.glob(f"__pycache__/{path.stem}.*.pyc")) if path.suffix == ".py" else []
