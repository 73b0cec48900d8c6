"""``dspatch activate``: have this interpreter start dspatch wherever ``DSPATCH=1`` is set.

A wheel brings its startup files along; this is for editable installs and unusual layouts.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from dspatch.activation import sites

_DONE, _REFUSED, _COULD_NOT = 0, 1, 3


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``activate``."""
    parser = subparsers.add_parser(
        "activate",
        help="install the startup files, so that DSPATCH=1 is enough",
        description="Writes dspatch's startup files into the site-packages of the Python that runs this. They do "
        "nothing unless DSPATCH is on. `dspatch deactivate` takes them away.",
    )
    parser.add_argument(
        "--sitecustomize",
        action="store_true",
        help="write a sitecustomize.py too, which runs the one that it hides (where .pth files are not read)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be written")


def run(args: argparse.Namespace) -> int:
    """Write, look whether it works, and say both."""
    texts = sites.startup_texts()
    folder = sites.writable(sites.folders())
    if folder is None:
        listed = ", ".join(map(str, sites.folders())) or "none"
        _complain(f"no site-packages can be written to: {listed}")
        _complain("use `dspatch run -- CMD`, or `import dspatch` at the top of the script")
        return _COULD_NOT
    if args.sitecustomize:
        hidden_by = _comes_before(folder)
        if hidden_by:
            _complain(f"{hidden_by} is found first, a sitecustomize in {folder} would not run")
            _complain("leave --sitecustomize away")
            return _REFUSED
        texts[sites.SITECUSTOMIZE] = sites.sitecustomize_text()
    foreign = [path for path in (folder / name for name in texts) if path.exists() and not sites.is_ours(path)]
    if foreign:
        _complain(f"{foreign[0]} is somebody else's, and stays as it is; nothing was written")
        return _REFUSED
    for name, text in texts.items():
        print(_write(folder / name, text, args.dry_run))
    return _DONE if args.dry_run else _check()


def _comes_before(folder: Path) -> str | None:
    """A sitecustomize that Python finds before one in ``folder``."""
    found = sites.probe()
    if found.sitecustomize is None:
        return None
    order = [os.path.realpath(entry) for entry in found.path]
    file = Path(found.sitecustomize)
    is_package = file.stem == "__init__"
    theirs, ours = os.path.realpath(file.parents[is_package]), os.path.realpath(folder)
    if theirs == ours:
        return found.sitecustomize if is_package else None  # in one folder a package comes before a file
    if theirs not in order:
        return None
    return found.sitecustomize if ours not in order or order.index(theirs) < order.index(ours) else None


def _write(path: Path, text: str, dry_run: bool) -> str:
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return f"already there  {path}"
    if dry_run:
        return f"would write    {path}"
    path.parent.mkdir(parents=True, exist_ok=True)
    # A process that starts just now must see the old file or the new one.
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    return f"wrote          {path}"


def _check() -> int:
    if sites.probe().started:
        print(f"DSPATCH=1 now starts dspatch in {sys.executable}")
        return _DONE
    _complain(f"{sys.executable} does not read these files; use `dspatch run -- CMD`")
    return _REFUSED


def _complain(text: str) -> None:
    print(f"dspatch activate: {text}", file=sys.stderr)
