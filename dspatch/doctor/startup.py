"""How dspatch gets into a process by itself: startup files, by whom, whether Python reads them, and what hides what."""

from __future__ import annotations

import os
from pathlib import Path

from dspatch.activation import sites
from dspatch.doctor.checks import Answer, Check, fail, ok, skip, warn
from dspatch.doctor.here import Here


def _there() -> dict[Path, list[Path]]:
    """Folder -> startup files in it, for the folders that have any."""
    found = {folder: [folder / name for name in sites.STARTUP_FILES if (folder / name).is_file()]
             for folder in sites.folders()}  # fmt: skip
    return {folder: files for folder, files in found.items() if files}


def _started(here: Here) -> bool:
    return bool(here.imports.fact("start", "started", False))


def _files(here: Here) -> Answer:
    there = _there()
    if not there:
        if here.switch != "on" or _started(here):
            return ok("none: `import dspatch` in the script, or `dspatch run`, starts dspatch")
        return fail("DSPATCH is on, but nothing here acts on it", "dspatch activate, or `import dspatch` in the script")
    listed = [f"{path} ({_by_whom(path)})" for files in there.values() for path in files]
    line = f"by {', '.join(dict.fromkeys(_by_whom(path) for files in there.values() for path in files))}"
    line += f" in {', '.join(map(str, there))}"
    strange = [path for files in there.values() for path in files if not sites.is_ours(path)]
    if strange:
        return warn(
            f"{strange[0]} is somebody else's, under the name of ours", "remove it, then dspatch activate", *listed
        )
    for folder, files in there.items():
        absent = [name for name in sites.STARTUP_FILES if folder / name not in files]
        if absent:
            return warn(f"{line}, without {', '.join(absent)}", "dspatch activate", *listed)
    stale = _stale([path for files in there.values() for path in files])
    if stale:
        return warn(f"{line}; {stale[0].name} is not the one of this dspatch", "dspatch activate", *listed)
    return ok(line, *listed)


def _by_whom(path: Path) -> str:
    if sites.is_pips(path):
        return "pip"
    return "dspatch activate" if sites.is_ours(path) else "somebody else"


def _stale(files: list[Path]) -> list[Path]:
    try:
        texts = sites.startup_texts()
    except OSError:  # a bare copy of the package: nothing to compare with
        return []
    return [path for path in files if path.read_text(encoding="utf-8", errors="replace") != texts[path.name]]


def _runs(here: Here) -> Answer:
    if not here.imports.path:
        return skip("no fresh process of this Python could be looked at")
    if _started(here):
        return ok("DSPATCH=1 starts dspatch in this Python")
    if not _there():
        return skip("no startup files")
    return fail("DSPATCH=1 does not start dspatch, although there are startup files", "this Python does not read .pth "
                "files there (-S, -I, an embedded one); use `dspatch run -- CMD`")  # fmt: skip


def _sitecustomize(here: Here) -> Answer:
    found = _on_path(here)
    if not found:
        return ok("there is no sitecustomize")
    ours = [path for path in found if sites.is_ours(path)]
    listed = [f"{path} ({'of dspatch' if path in ours else 'foreign'})" for path in found]
    first, behind = found[0], found[1:]
    if first in ours:
        return ok(f"{first} is of dspatch" + (f", and runs {behind[0]}" if behind else ""), *listed)
    if ours:
        return warn(
            f"{first} hides the one of dspatch, which is not run", "dspatch activate, without --sitecustomize", *listed
        )
    if behind:
        return warn(
            f"{first} hides {behind[0]}, which is not run", "nothing of dspatch's; make sure that is meant", *listed
        )
    return ok(f"{first}, which is not of dspatch, is run as ever", *listed)


def _on_path(here: Here) -> list[Path]:
    found: dict[str, Path] = {}
    for folder in here.path:
        # In one folder a package comes before a file, and then alone.
        for path in (folder / "sitecustomize" / "__init__.py", folder / sites.SITECUSTOMIZE):
            if path.is_file():
                found.setdefault(os.path.realpath(path), path)
                break
    return list(found.values())


CHECKS = (
    Check("startup.files", _files),
    Check("startup.runs", _runs),
    Check("startup.sitecustomize", _sitecustomize),
)
