"""What the checks look at: this environment. Everything is found out when first asked for, once, and never raises."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from dspatch.doctor import child
from dspatch.errors import DspatchError
from dspatch.patching.matrix import Matrix, load
from dspatch.patching.version import version_beside
from dspatch.settings import NOT_SETTINGS, OFF_WORDS, ON_WORDS, read


@dataclass(frozen=True)
class Package:
    """A package as it lies on the path.

    Attributes:
        folder: the folder that the package's folder is in.
        named: its version by the metadata beside it, as written there; empty without.
    """

    folder: Path
    named: str

    @classmethod
    def at(cls, folder: Path, distribution: str) -> Package:
        """Read the metadata in ``folder``."""
        found = {str(one.version) for one in metadata.distributions(name=distribution, path=[str(folder)])}
        return cls(folder, found.pop() if len(found) == 1 else "")


class Here:
    """This environment.

    Attributes:
        environ: the variables as the caller had them.
        home: the user's home folder.
        folder: the working folder.
    """

    def __init__(self, environ: Mapping[str, str], home: Path, folder: Path) -> None:
        self.environ = environ
        self.home = home
        self.folder = folder

    @classmethod
    def real(cls) -> Here:
        """Of this process; variables that had to be set aside for dspatch to start are back in their place."""
        startup = sys.modules.get("_dspatch_startup")
        aside: dict[str, str] | None = getattr(startup, "set_aside", None)
        environ = dict(os.environ)
        if aside is not None:
            del environ["DSPATCH"]
            environ.update(aside)
        return cls(environ, Path(os.path.expanduser("~")), Path.cwd())

    # --- settings -----------------------------------------------------------------------------------------------------

    @property
    def switch(self) -> str:
        """``on``, ``off``, ``unset``, or ``wrong``."""
        word = self.environ.get("DSPATCH", "").strip().lower()
        return "unset" if not word else "on" if word in ON_WORDS else "off" if word in OFF_WORDS else "wrong"

    @cached_property
    def wrong_settings(self) -> dict[str, str]:
        """Variable -> what is wrong with it; each is read alone, since the first error ends a reading."""
        wrong = {}
        for name, value in self.settings.items():
            try:
                read({name: value})
            except DspatchError as error:
                wrong[name] = "; ".join(" ".join(line.split()) for line in str(error).splitlines())
        return wrong

    @property
    def settings(self) -> dict[str, str]:
        """The ``DSPATCH*`` variables that are set."""
        return {
            name: value
            for name, value in sorted(self.environ.items())
            if (name == "DSPATCH" or name.startswith("DSPATCH_")) and not name.startswith(NOT_SETTINGS)
        }

    # --- dspatch ------------------------------------------------------------------------------------------------------

    @cached_property
    def _matrix(self) -> tuple[Matrix | None, str]:
        try:
            return load(), ""
        except Exception as error:  # no PyYAML, no packaging, half an installation
            return None, f"{type(error).__name__}: {error}"

    @property
    def matrix(self) -> Matrix | None:
        """The matrix, None if it cannot be read."""
        return self._matrix[0]

    @property
    def matrix_error(self) -> str:
        """Why the matrix cannot be read; empty if it can."""
        return self._matrix[1]

    # --- what is on the path ------------------------------------------------------------------------------------------

    @cached_property
    def imports(self) -> child.Imports:
        """What a fresh process of this Python sees, see ``child``."""
        wanted = {name: value for name, value in self.environ.items() if name not in self.wrong_settings}
        # What would happen with dspatch on is the question, also where it is off.
        return child.look({**wanted, "DSPATCH": "1"})

    @cached_property
    def path(self) -> tuple[Path, ...]:
        """``sys.path`` of a fresh process; this one's if none could be started."""
        entries = self.imports.path or tuple(sys.path)
        return tuple(Path(entry or os.curdir) for entry in entries)

    def copies(self, package: str) -> list[Package]:
        """The copies of a package that lie on the path, each once, in the order in which Python finds them."""
        found: dict[str, Package] = {}
        for folder in self.path:
            if (folder / package / "__init__.py").is_file():
                found.setdefault(os.path.realpath(folder / package), Package.at(folder, package))
        return list(found.values())

    @cached_property
    def deepspeed(self) -> Package | None:
        """The DeepSpeed that Python finds, None if there is none."""
        copies = self.copies("deepspeed")
        if copies:
            return copies[0]
        # An editable install may have a finder of its own. A name without a dot is found without importing anything.
        spec = find_spec("deepspeed")
        places = list(spec.submodule_search_locations or ()) if spec is not None and spec.origin else []
        return Package.at(Path(places[0]).parent, "deepspeed") if places else None

    @cached_property
    def version(self) -> str | None:
        """DeepSpeed's version; None where it cannot be trusted (a source tree), or without a DeepSpeed."""
        found = self.deepspeed
        if found is None:
            return None
        try:
            return version_beside([found.folder])
        except ImportError:  # without `packaging` no version can be read
            return None

    @cached_property
    def torch(self) -> str:
        """torch's version by its metadata, empty if there is none."""
        found = [str(one.version) for one in metadata.distributions(name="torch", path=[str(one) for one in self.path])]
        return found[0] if found else ""
