"""Imports between rooms go only the ways that the design draws, so that a room can be read alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

#: Read by everything: no room of its own behind them.
_COMMON = {"errors", "settings", "log"}

#: room -> the rooms that it may import.
_MAY: dict[str, set[str]] = {
    "checkpoint": set(),
    "live": {"checkpoint"},
    "patching": {"checkpoint"},
    "activation": {"patching"},
    "verdict": {"activation", "checkpoint", "live"},
    "patches": {"activation", "checkpoint", "live", "verdict"},
    "offline": {"checkpoint"},
    "diff": {"checkpoint", "offline"},
    "demo": set(),
    "doctor": {"activation", "checkpoint", "demo", "patching"},
    "cli": {"activation", "checkpoint", "demo", "diff", "doctor", "offline", "patching", "verdict"},
}

#: The only rooms that may name things of DeepSpeed; `demo` trains with it.
_MAY_IMPORT_DEEPSPEED = {"live", "patches", "demo"}
_NEVER_TORCH = {"checkpoint", "diff", "offline", "patching", "activation", "cli", "doctor"}


def _files() -> Iterator[tuple[str, Path]]:
    for folder in sorted(path for path in (ROOT / "dspatch").iterdir() if path.is_dir() and path.name != "__pycache__"):
        for file in sorted(folder.glob("*.py")):
            yield folder.name, file
    for file in sorted((ROOT / "patches").glob("*.py")):
        yield "patches", file


def _imported(file: Path) -> Iterator[str]:
    """Full names of what a file imports, wherever in it, but not for type checkers alone."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize(("room", "file"), list(_files()), ids=lambda value: getattr(value, "stem", value))
def test_arrows(room: str, file: Path) -> None:
    assert room in _MAY, f"say in this test what the room {room} may import"
    for name in _imported(file):
        parts = name.split(".")
        if parts[0] == "dspatch" and len(parts) > 1:
            other = parts[1]
            allowed = {room, *_COMMON, *_MAY[room]}
            # `from dspatch import __version__` and the public names are for the ends of the arrows.
            assert other in allowed or (room in ("cli", "demo") and other.startswith("__")), f"{room} -> {name}"
        if parts[0] == "deepspeed":
            assert room in _MAY_IMPORT_DEEPSPEED, f"{room} imports {name}"
        if parts[0] == "torch":
            assert room not in _NEVER_TORCH, f"{room} imports {name}"


def test_common_files_import_no_room() -> None:
    for name in _COMMON:
        file = ROOT / "dspatch" / f"{name}.py"
        for imported in _imported(file):
            if imported.startswith("dspatch."):
                assert imported.split(".")[1] in _COMMON, imported
