"""One small deepspeed, and three ways to have dspatch beside it: from the checkout, as a wheel, editable."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.activation.fakes import make_deepspeed
from tests.support import installs
from tests.support.installs import Environment
from tests.support.paths import ROOT


@pytest.fixture(scope="session")
def deepspeed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the small deepspeed."""
    return make_deepspeed(tmp_path_factory.mktemp("deepspeed"))


@pytest.fixture(scope="session")
def checkout(deepspeed: Path) -> Environment:
    """The development environment with this checkout in front. Not to be changed."""
    return Environment(Path(sys.prefix), (deepspeed, ROOT))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory, deepspeed: Path) -> Environment:
    """An environment with the wheel, startup files included. Not to be changed."""
    return replace(installs.with_wheel(tmp_path_factory.getbasetemp()), path=(deepspeed,))


@pytest.fixture(scope="session")
def editable(tmp_path_factory: pytest.TempPathFactory, deepspeed: Path) -> Environment:
    """An environment with an editable install, which has no startup files. Not to be changed."""
    return replace(installs.with_editable(tmp_path_factory.getbasetemp()), path=(deepspeed,))
