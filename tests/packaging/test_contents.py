"""What is in the wheel and the sdist: everything that is needed, and nothing that would clash in site-packages."""

from __future__ import annotations

import email
import zipfile
from collections.abc import Iterable
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.support import installs

#: File at the root of site-packages -> file in the tree.
AT_THE_ROOT = ("_dspatch_startup.py", "dspatch.pth", "dspatch.start")


def files_of(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def in_tree(source: Path, folders: Iterable[str]) -> dict[str, bytes]:
    """Every file of these folders, by its path in the tree, but for what Python leaves behind when somebody imports it."""
    found = (file for folder in folders for file in (source / folder).rglob("*") if file.is_file())
    return {str(file.relative_to(source)): file.read_bytes() for file in found if "__pycache__" not in file.parts}


def info(files: dict[str, bytes], name: str) -> str:
    """The text of one file of the wheel's metadata."""
    (found,) = (path for path in files if path.endswith(f".dist-info/{name}"))
    return files[found].decode()


@pytest.fixture(scope="module")
def source(base: Path) -> Path:
    return installs.source_tree(base)


@pytest.fixture(scope="module")
def wheel(base: Path) -> dict[str, bytes]:
    return files_of(installs.built(base, "wheel"))


def test_the_wheel_is_the_tree_and_nothing_else(wheel: dict[str, bytes], source: Path) -> None:
    """A package that setup.cfg forgets, or a stray top-level `patches` or `tests`, would show here."""
    expected = in_tree(source, ["dspatch"])
    expected |= {f"dspatch/{name}": text for name, text in in_tree(source, ["patches"]).items()}
    expected |= {name: (source / name).read_bytes() for name in AT_THE_ROOT}
    expected["dspatch/compat_matrix.yaml"] = (source / "compat_matrix.yaml").read_bytes()
    found = {name: text for name, text in wheel.items() if ".dist-info/" not in name}
    assert sorted(found) == sorted(expected)
    assert found == expected


def test_what_has_to_be_there_by_name(wheel: dict[str, bytes]) -> None:
    """Said once without looking at the tree, in which a file could be lost."""
    for name in (
        *AT_THE_ROOT,
        "dspatch/py.typed",
        "dspatch/compat_matrix.yaml",
        "dspatch/patches/__init__.py",
        "dspatch/patches/load_guard.py",
        "dspatch/activation/private-site/sitecustomize.py",
    ):
        assert name in wheel
    assert info(wheel, "licenses/LICENSE").strip().startswith("Apache License")


def test_it_is_for_every_machine(wheel: dict[str, bytes], base: Path) -> None:
    assert installs.built(base, "wheel").name.endswith("-py3-none-any.whl")
    assert "Root-Is-Purelib: true" in info(wheel, "WHEEL")
    assert set(info(wheel, "top_level.txt").split()) == {"_dspatch_startup", "dspatch"}


def test_the_metadata(wheel: dict[str, bytes]) -> None:
    metadata = email.message_from_string(info(wheel, "METADATA"))
    assert metadata["Name"] == "dspatch"
    assert metadata["Requires-Python"] == ">=3.10"
    needed = metadata.get_all("Requires-Dist") or []
    always = {text.split(">=")[0].lower() for text in needed if "extra ==" not in text}
    assert always == {"wrapt", "packaging", "pyyaml", "zlib-ng"}
    assert set(metadata.get_all("Provides-Extra") or []) >= {"terminal", "pictures"}


def test_the_entry_points(wheel: dict[str, bytes]) -> None:
    points = ConfigParser()
    points.read_string(info(wheel, "entry_points.txt"))
    assert {group: dict(points[group]) for group in points.sections()} == {
        "console_scripts": {"dspatch": "_dspatch_startup:command"},
        "dspatch": {"sys": "_dspatch_startup:from_autowrapt"},
    }


def test_the_startup_line_is_one_line(wheel: dict[str, bytes]) -> None:
    """site runs only lines that begin with `import`, each by itself, and from 3.15 on only without a .start file."""
    (line,) = wheel["dspatch.pth"].decode("ascii").splitlines()
    assert line.startswith("import os; ")
    assert wheel["dspatch.start"].decode("ascii") == "_dspatch_startup:main\n"


def test_the_sdist(base: Path, source: Path) -> None:
    """What a wheel is built from, and no tests: they need DeepSpeed trees and this checkout's tools."""
    files = in_tree(installs.unpacked_sdist(base), ["."])
    made = ("dspatch.egg-info/", "PKG-INFO")
    own = {name: text for name, text in files.items() if not name.startswith(made)}
    expected = in_tree(source, ["dspatch", "patches"])
    singles = (*AT_THE_ROOT, "compat_matrix.yaml", "LICENSE", "pyproject.toml", "setup.cfg")
    expected |= {name: (source / name).read_bytes() for name in singles}
    readme = source / "README.md"
    if readme.exists():
        expected["README.md"] = readme.read_bytes()
    own.pop("setup.cfg"), expected.pop("setup.cfg")  # setuptools writes it anew; what it says shows in the next test
    assert sorted(own) == sorted(expected)
    assert own == expected


def test_the_wheel_of_the_sdist_is_the_wheel_of_the_tree(base: Path, wheel: dict[str, bytes]) -> None:
    again = installs.wheel_of_sdist(base)
    assert again.name == installs.built(base, "wheel").name
    assert files_of(again) == wheel


def test_an_editable_install_copies_nothing(base: Path) -> None:
    environment = installs.with_editable(base)
    added = environment.files() - installs.empty(base).files()
    site = environment.site.relative_to(environment.folder)
    names = {Path(name).relative_to(site).parts[0] for name in added if name.startswith(str(site))}
    assert {name for name in names if not name.startswith("__editable__") and ".dist-info" not in name} == set()
    assert {name for name in added if not name.startswith(str(site))} == {"bin/dspatch"}
