"""Wheel, sdist and editable install of this tree, each built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import installs
from tests.support.installs import Environment


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where they are built, the same for all of the session."""
    return tmp_path_factory.getbasetemp()


@pytest.fixture(scope="session", params=["wheel", "editable"])
def installed(request: pytest.FixtureRequest, base: Path) -> Environment:
    """An environment with dspatch installed one way and the other. Not to be changed."""
    return installs.with_wheel(base) if request.param == "wheel" else installs.with_editable(base)
