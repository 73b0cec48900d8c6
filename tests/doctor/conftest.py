"""Environments with dspatch in them, the same that tests/activation uses in one session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.doctor.visits import make_world
from tests.support import installs
from tests.support.installs import Environment


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where environments are built."""
    return tmp_path_factory.getbasetemp()


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small torch and a small deepspeed."""
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def editable(base: Path, world: Path) -> Environment:
    """An editable install, without startup files. Not to be changed."""
    return replace(installs.with_editable(base), path=(world,))


@pytest.fixture(scope="session")
def wheel(base: Path, world: Path) -> Environment:
    """The wheel, with startup files. Not to be changed."""
    return replace(installs.with_wheel(base), path=(world,))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home folder, which is the working folder too."""
    folder = tmp_path / "home of alice"
    folder.mkdir()
    return folder


@pytest.fixture
def site(editable: Environment, tmp_path: Path) -> Environment:
    """A copy of the editable environment that a test may change."""
    return editable.copy(tmp_path / "env")
