"""Calling the doctor, and the small packages that it is shown instead of torch and DeepSpeed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.activation.fakes import make_deepspeed
from tests.support.installs import Environment, run
from tests.support.trees import roles

#: The console script, which `python -m` in a copy of an environment cannot be.
CONSOLE = "import sys; sys.argv[0] = 'dspatch'; from _dspatch_startup import command; sys.exit(command())"


@dataclass(frozen=True)
class Visit:
    """What the doctor said.

    Attributes:
        code: exit code.
        data: its JSON.
        statuses: id -> status.
    """

    code: int
    data: dict[str, Any]

    @property
    def statuses(self) -> dict[str, str]:
        return {one["id"]: one["status"] for one in self.data["checks"]}

    def check(self, id: str, status: str) -> str:
        """The line and the fix of one check, which must have that status."""
        (one,) = (one for one in self.data["checks"] if one["id"] == id)
        assert one["status"] == status, one
        assert "\n" not in one["line"] + one["fix"]
        assert bool(one["fix"]) == (status in ("WARN", "FAIL", "CRASH")) or status == "SKIP"
        return f"{one['line']} | {one['fix']}"


def visit(environment: Environment, home: Path, *options: str, **environ: str | None) -> Visit:
    """Run ``dspatch doctor --json`` with ``home`` as home and as working folder."""
    command = [environment.python, "-c", CONSOLE, "doctor", "--json", *options]
    done = run(command, *environment.path, cwd=home, HOME=str(home), **environ)
    assert done.err == "", done.err
    found = Visit(done.code, json.loads(done.out))
    assert "CRASH" not in found.statuses.values(), done.out
    assert found.data["exit"] == done.code
    return found


def make_package(folder: Path, name: str, version: str = "", code: str = "") -> Path:
    """Write a package, and its metadata if it has a version. Returns ``folder``."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "__init__.py").write_text(code)
    if version:
        make_metadata(folder, name, version)
    return folder


def make_metadata(folder: Path, name: str, version: str) -> Path:
    """Write the metadata alone. Returns ``folder``."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def make_world(folder: Path, first: str = "", without: str = "", last: str = "", version: str | None = None) -> Path:
    """A torch and a deepspeed that import in no time; the latter says that it is the newest release.

    Args:
        folder: where to.
        first: code that deepspeed begins with.
        without: a function that it lacks.
        last: code that it ends with.
        version: another version, or an empty one for a source tree.
    """
    make_package(folder, "torch", "2.0", "__version__ = '2.0+fake'\n")
    make_deepspeed(folder, first=first, without=without)
    with (folder / "deepspeed" / "__init__.py").open("a") as file:
        file.write(last)
    named = roles()["newest"] if version is None else version
    if named:
        make_metadata(folder, "deepspeed", named)
    return folder
