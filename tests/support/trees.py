"""Real DeepSpeed releases side by side, each unpacked into ``.cache/trees/VERSION`` and used through ``PYTHONPATH``.

DeepSpeed ships source only; with ``DS_BUILD_OPS=0`` a wheel of it is pure Python and builds in seconds. Tests never
name a version: they ask for a role (``oldest``, ``newest``, ...), and compat_matrix.yaml says which release plays it.

The first ``init_distributed`` of a release on CPU compiles a shared-memory operator, which takes up to a minute, so it
is compiled here once, into a folder of ``.cache/ext``; a build of one release breaks another, hence a folder each.

Run as ``python -m tests.support.trees``: builds what is missing. Safe to run twice and from several shells.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import yaml

from tests.support import bygone
from tests.support.paths import CACHE, MATRIX, ROOT

#: Other releases for some roles in one run: ``TREE_ROLES="newest=1.2.3 oldest=1.0.0"``.
OVERRIDE = "TREE_ROLES"

#: torch's file baton around a build. A killed build leaves it, and every later build then waits for ever.
LOCK_NAME = "lock"

_BUILD_SECONDS = 600


@dataclass(frozen=True)
class Tree:
    """One unpacked DeepSpeed.

    Attributes:
        role: its role in the matrix, or the name given to a tree that a test edited.
        version: the release.
        path: the folder that holds the ``deepspeed`` package, for ``PYTHONPATH``.
        extensions: the folder for its compiled operators, for ``TORCH_EXTENSIONS_DIR``.
    """

    role: str
    version: str
    path: Path
    extensions: Path

    @property
    def reads_own_files(self) -> bool:
        """Whether it loads its own checkpoints with a torch whose ``torch.load`` defaults to ``weights_only=True``."""
        loader = self.path / "deepspeed/runtime/checkpoint_engine/torch_checkpoint_engine.py"
        return "weights_only=False" in loader.read_text(encoding="utf-8")

    @property
    def bygone(self) -> bool:
        """Whether it takes names from torch that the torch of the tests no longer has: see ``tests.support.bygone``."""
        return bygone.is_bygone(self.path)


def roles() -> dict[str, str]:
    """Role -> release, from the matrix, with ``TREE_ROLES`` on top.

    Raises:
        LookupError: neither names a tree.
    """
    named: dict[str, str] = {}
    if MATRIX.exists():
        named.update((yaml.safe_load(MATRIX.read_text(encoding="utf-8")) or {}).get("trees") or {})
    named.update(word.split("=", 1) for word in os.environ.get(OVERRIDE, "").split())
    if not named:
        raise LookupError(f"{MATRIX.name} has no `trees:` (role: version) and {OVERRIDE} is not set")
    return named


def tree(role: str) -> Tree:
    """The tree that plays ``role``, built on first use.

    Raises:
        KeyError: no such role; the message lists the roles.
    """
    known = roles()
    if role not in known:
        raise KeyError(f"no tree has the role {role!r}; the matrix names {', '.join(sorted(known))}")
    return release(known[role], role)


def release(version: str, role: str = "") -> Tree:
    """The tree of one release, built on first use. Tests take trees by role; this is for tools that walk releases."""
    found = Tree(role or version, version, CACHE / "trees" / version, CACHE / "ext" / f"{version}-{_toolchain()}")
    build(found)
    warm(found)
    return found


def edited(original: Tree, path: Path, name: str) -> Tree:
    """A tree at ``path`` whose source was changed. Its operator is compiled anew, since ninja goes by source paths."""
    changed = Tree(name, original.version, path, CACHE / "ext" / f"{path.name}-{_toolchain()}")
    warm(changed)
    return changed


def build(wanted: Tree) -> None:
    """Download and unpack one release. The folder appears complete or not at all."""
    if wanted.path.is_dir():
        return
    with _only_one(f"tree-{wanted.version}"), tempfile.TemporaryDirectory(dir=_made(CACHE)) as scratch:
        if wanted.path.is_dir():
            return
        _say(f"building the DeepSpeed {wanted.version} tree")
        wheels, unpacked = Path(scratch, "wheels"), Path(scratch, "tree")
        wheel = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), f"deepspeed=={wanted.version}")
        try:
            _pip(*wheel)
        except RuntimeError:  # its set-up imports itself, and a bygone one cannot be imported as it is
            _pip(*wheel, PYTHONPATH=bygone.site(Path(scratch)))
        _pip("install", "--no-deps", "--target", str(unpacked), *map(str, wheels.glob("deepspeed-*.whl")))
        _made(wanted.path.parent)
        unpacked.rename(wanted.path)


def warm(wanted: Tree) -> None:
    """Compile the shared-memory operator of one release, once; a bygone one uses gloo alone."""
    stamp = wanted.extensions / "built"
    if stamp.exists() or wanted.bygone:
        return
    with _only_one(f"ext-{wanted.extensions.name}"):
        if stamp.exists():
            return
        _say(f"compiling the shared-memory operator for the tree {wanted.path.name} (up to a minute)")
        shutil.rmtree(wanted.extensions, ignore_errors=True)
        _made(wanted.extensions)
        _one_rank(wanted)
        stamp.touch()


def drop_stale_locks(extensions: Path, older_than: float = 60.0) -> None:
    """Remove build locks that killed processes left; a warm operator holds its lock for about a second.

    Args:
        extensions: the ``TORCH_EXTENSIONS_DIR`` of one release.
        older_than: seconds; younger locks belong to a process that is just starting.
    """
    for lock in extensions.rglob(LOCK_NAME):
        try:
            if time.time() - lock.stat().st_mtime > older_than:
                lock.unlink()
        except FileNotFoundError:
            continue


def _toolchain() -> str:
    """Short name of this Python, torch and environment: torch rebuilds an operator when its include paths change."""
    parts = (sys.version, sys.prefix, metadata.version("torch"))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


def _one_rank(wanted: Tree) -> None:
    from tests.support.environment import free_port, rank_environment, remove_shared_memory

    port = free_port()
    program = "import deepspeed; deepspeed.init_distributed(dist_backend='gloo')"
    try:
        _run([sys.executable, "-c", program], env=rank_environment(wanted, rank=0, world=1, port=port))
    finally:
        remove_shared_memory(port)


def _pip(*arguments: str, **variables: str) -> None:
    _run([sys.executable, "-m", "pip", "--quiet", *arguments], env={**os.environ, "DS_BUILD_OPS": "0", **variables})


def _run(command: list[str], env: dict[str, str]) -> None:
    done = subprocess.run(
        command, env=env, cwd=ROOT, timeout=_BUILD_SECONDS, capture_output=True, text=True, check=False
    )
    if done.returncode:
        output = f"{done.stdout}\n{done.stderr}"[-6000:]
        raise RuntimeError(f"`{' '.join(command)}` ended with {done.returncode}:\n{output}")


@contextmanager
def _only_one(name: str) -> Iterator[None]:
    with open(_made(CACHE / "locks") / name, "w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _say(text: str) -> None:
    print(f"[trees] {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Build every tree of the matrix, or print where they lie."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.trees", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--list", action="store_true", help="print role, release and folder of each tree")
    wanted = parser.parse_args()
    for role in roles():
        found = tree(role)
        if wanted.list:
            print(role, found.version, found.path, found.extensions)


if __name__ == "__main__":
    main()
