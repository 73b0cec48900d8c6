"""dspatch as users install it: built from a copy of the tree, put into a Python environment of its own, no network.

Building and installing takes seconds, so what only has to be looked at is made once per test session; a test that
changes its environment takes a copy of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path

from tests.support.paths import ROOT

#: Linked from the development environment, so that nothing is downloaded. setuptools builds the editable install;
#: autowrapt is there, but not its startup file, which a test copies if it wants it.
_LINKED = ("wrapt", "packaging", "PyYAML", "zlib-ng", "setuptools", "autowrapt")

#: What a build, an editor or a test leaves in a checkout.
_LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "demo-out", "tests")

_SECONDS = 120


@dataclass(frozen=True)
class Ended:
    """A process that has ended: exit code, and what it printed."""

    code: int
    out: str
    err: str


def run(command: Iterable[str | Path], *path: Path, cwd: Path | None = None, **environ: str | None) -> Ended:
    """Run a command without any ``DSPATCH*`` or ``PYTHON*`` variable of the caller.

    Args:
        command: program and arguments.
        path: entries of ``PYTHONPATH``.
        cwd: where to; by default the root of the file system, where nothing can be imported by accident.
        environ: variables on top.
    """
    ours = ("DSPATCH", "_DSPATCH", "PYTHON", "AUTOWRAPT", "RANK", "WORLD_SIZE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    kept["PYTHONPATH"] = os.pathsep.join(map(str, path))
    kept.update({name: value for name, value in environ.items() if value is not None})
    done = subprocess.run(
        list(map(str, command)),
        env=kept, cwd=cwd or Path("/"), capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Environment:
    """A Python environment with dspatch in it.

    Attributes:
        folder: its root.
        path: what ``run`` puts on ``PYTHONPATH``.
    """

    folder: Path
    path: tuple[Path, ...] = field(default=())

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        """Its site-packages."""
        return next((self.folder / "lib").glob("python3*/site-packages"))

    def code(self, code: str, *options: str, **environ: str | None) -> Ended:
        """Run Python code."""
        return run([self.python, *options, "-c", code], *self.path, **environ)

    def dspatch(self, *arguments: str, **environ: str | None) -> Ended:
        """Run ``python -m dspatch``, which unlike the console script also works in a copy of an environment."""
        return run([self.python, "-m", "dspatch", *arguments], *self.path, **environ)

    def pip(self, *arguments: str) -> str:
        """Run the development environment's pip on it."""
        return _must([sys.executable, "-m", "pip", "--python", self.python, *arguments])

    def files(self) -> set[str]:
        """Everything in it, without what Python compiles by itself."""
        found = [Path(parent, name) for parent, folders, names in os.walk(self.folder) for name in (*folders, *names)]
        kept = (path for path in found if path.is_symlink() or path.is_file())
        return {str(path.relative_to(self.folder)) for path in kept if path.parent.name != "__pycache__"}

    def copy(self, folder: Path) -> Environment:
        """A copy that a test may change."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Environment(folder, self.path)


@cache
def source_tree(base: Path) -> Path:
    """A copy of the checkout without what was built in it; builds write into their source."""
    return Path(shutil.copytree(ROOT, base / "source" / "dspatch-tree", ignore=_LEFT_OUT))


@cache
def editable_tree(base: Path) -> Path:
    """Another copy, which the editable install uses; Python compiles modules into it."""
    return Path(shutil.copytree(source_tree(base), base / "editable" / "tree"))


@cache
def built(base: Path, kind: str) -> Path:
    """The ``wheel`` or ``sdist`` that `python -m build` makes of the tree."""
    source = shutil.copytree(source_tree(base), base / f"build-{kind}" / "tree")
    return _build(source, base / f"build-{kind}" / "out", kind)


@cache
def unpacked_sdist(base: Path) -> Path:
    """The folder in the sdist."""
    folder = base / "unpacked"
    with tarfile.open(built(base, "sdist")) as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (found,) = folder.iterdir()
    return found


@cache
def wheel_of_sdist(base: Path) -> Path:
    """The wheel that is built from the unpacked sdist."""
    source = shutil.copytree(unpacked_sdist(base), base / "build-again" / "tree")
    return _build(source, base / "build-again" / "out", "wheel")


@cache
def empty(base: Path) -> Environment:
    """An environment with dspatch's dependencies and without dspatch."""
    folder = base / "env-empty"
    venv.create(folder, with_pip=False, symlinks=True)
    made = Environment(folder)
    for name in _LINKED:
        for source in _top_level(name):
            (made.site / source.name).symlink_to(source)
    # pip removes a folder in which every file is the package's, and does not count links.
    (made.site / "README.txt").touch()
    return made


@cache
def with_wheel(base: Path) -> Environment:
    """An environment with the wheel installed. Not to be changed."""
    made = empty(base).copy(base / "env-wheel")
    made.pip("install", *OFFLINE, str(built(base, "wheel")))
    return made


@cache
def with_editable(base: Path) -> Environment:
    """An environment with an editable install of the tree. Not to be changed."""
    made = empty(base).copy(base / "env-editable")
    made.pip("install", *OFFLINE, "--editable", str(editable_tree(base)))
    return made


OFFLINE = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")


def _top_level(distribution: str) -> set[Path]:
    """The files and folders of an installed distribution that lie directly in site-packages, startup files aside."""
    found = metadata.distribution(distribution)
    names = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
    return {Path(str(found.locate_file(name))) for name in names if not name.endswith((".pth", ".start"))}


def _build(source: Path, out: Path, kind: str) -> Path:
    _must([sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", out, source])
    (made,) = out.iterdir()
    return made


def _must(command: list[str | Path]) -> str:
    done = run(command)
    assert done.code == 0, f"{' '.join(map(str, command))} ended with {done.code}\n{done.out}\n{done.err}"
    return done.out
