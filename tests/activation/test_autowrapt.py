"""`AUTOWRAPT_BOOTSTRAP=dspatch python train.py`: dspatch by way of autowrapt, wrapt's companion."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

import pytest

from tests.support.installs import Environment

LOOK = "import sys; print('dspatch' in sys.modules); import deepspeed, look; print(look.guards())"


@pytest.fixture(scope="module", params=["wheel", "editable"])
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment in which autowrapt's startup file is installed too."""
    installed: Environment = request.getfixturevalue(request.param)
    copy = installed.copy(tmp_path_factory.mktemp("autowrapt") / "env")
    found = metadata.distribution("autowrapt")
    startup = [str(found.locate_file(file)) for file in found.files or () if file.suffix in (".pth", ".start")]
    assert startup, "autowrapt has no startup file"
    for file in startup:
        shutil.copy(file, copy.site / Path(file).name)
    return copy


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"AUTOWRAPT_BOOTSTRAP": "dspatch"}, ["True", "1"]),
        ({"AUTOWRAPT_BOOTSTRAP": "dspatch", "DSPATCH": "1"}, ["True", "1"]),
        ({"AUTOWRAPT_BOOTSTRAP": "dspatch", "DSPATCH": "0"}, ["False", "0"]),
        ({"AUTOWRAPT_BOOTSTRAP": "other, dspatch"}, ["True", "1"]),
        ({"AUTOWRAPT_BOOTSTRAP": "other"}, ["False", "0"]),
        ({}, ["False", "0"]),
    ],
)
def test_it_arms_unless_switched_off(environ: dict[str, str], said: list[str], environment: Environment) -> None:
    done = environment.code(LOOK, **environ)
    assert done.out.split() == said, done.err


def test_a_wrong_value_is_said_at_deepspeed(environment: Environment) -> None:
    environ = {"AUTOWRAPT_BOOTSTRAP": "dspatch", "DSPATCH_MODE": "strcit"}
    unrelated = environment.code("import json", **environ)
    assert (unrelated.code, unrelated.err) == (0, "")
    done = environment.code("import deepspeed", **environ)
    assert done.code == 1 and "one of strict, warn, observe" in done.err
