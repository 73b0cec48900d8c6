"""A small package named deepspeed, and matrix rows for it: everything about patching that needs no training."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

from dspatch.patching.body import fingerprint_source
from dspatch.patching.matrix import Matrix, Row
from dspatch.patching.ranges import Range
from dspatch.settings import Settings, read
from tests.support.paths import ROOT

ENGINE = "deepspeed.runtime.engine"
LOAD = f"{ENGINE}:DeepSpeedEngine.load_checkpoint"
RESOLVE = f"{ENGINE}:resolve"

SOURCES = {
    "__init__.py": """
        from .runtime.engine import DeepSpeedEngine
        from .runtime import user
        """,
    "runtime/__init__.py": "",
    "runtime/engine.py": """
        from deepspeed.utils import imported_helper

        def resolve(tag):
            return f"resolved {tag}"

        class Base:
            def inherited(self, tag):
                return f"inherited {tag}"

        class DeepSpeedEngine(Base):
            def load_checkpoint(self, load_dir, tag=None):
                return load_dir, tag

            @staticmethod
            def static(tag):
                return f"static {tag}"

            @classmethod
            def of_class(cls, tag):
                return f"{cls.__name__} {tag}"

            @property
            def prop(self):
                return 1
        """,
    "runtime/user.py": """
        from deepspeed.runtime.engine import resolve

        def use(tag):
            return resolve(tag)
        """,
    "utils.py": """
        def imported_helper(tag):
            return f"helped {tag}"
        """,
}


def make_tree(folder: Path, version: str | None = "2.0", **changed: str) -> Path:
    """Write the package, with metadata beside it unless ``version`` is None.

    Args:
        folder: where to; it becomes an entry of the path.
        version: what the metadata says.
        changed: file name without suffix, ``__`` for a slash, to its text, in place of the usual one.
    """
    sources = SOURCES | {f"{name.replace('__', '/')}.py": text for name, text in changed.items()}
    for name, text in sources.items():
        file = folder / "deepspeed" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text), encoding="utf-8")
    if version is not None:
        metadata = folder / f"deepspeed-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {version}\n")
    return folder


def body_of(tree: Path, site: str) -> str:
    """Fingerprint of a site in a tree."""
    module, _, qualname = site.partition(":")
    found = fingerprint_source(tree / f"{module.replace('.', '/')}.py", qualname)
    assert found is not None
    return found


def make_row(**changed: Any) -> Row:
    """A row on the loader of the small package that observes and is known to nothing, with changes."""
    values: dict[str, Any] = {
        "id": "load-note",
        "site": LOAD,
        "module": "tests.patching.wrappers",
        "wrapper": "note_call",
        "deepspeed": ">=1.0,<3.0",
        "tested": ("2.0",),
        "bodies": ("0" * 16,),
        "does": "observes",
        "unknown": "apply",
        "why": "a test",
        "scenarios": ("a_test",),
    } | changed
    return Row(**values | {"deepspeed": Range.parse(values["deepspeed"])})


def make_matrix(*rows: Row) -> Matrix:
    """A matrix of these rows, unchecked."""
    return Matrix(rows, {})


def settings(**variables: str) -> Settings:
    """Settings as read from these variables alone: ``settings(MODE="warn")``."""
    return read({f"DSPATCH_{name}": value for name, value in variables.items()})


def run_child(code: str, *path: Path, seconds: float = 120, **environ: str) -> str:
    """Run code in a new Python with the checkout and ``path`` in front, and return what it printed.

    Raises:
        AssertionError: it did not end with 0; the text holds its output.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DSPATCH")}
    # DSPATCH=0: importing a part of dspatch shall not arm its own engine beside the one under test.
    ours = {"PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT))), "DSPATCH": "0"}
    environment = inherited | ours | environ
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)],
        env=environment, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
