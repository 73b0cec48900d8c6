"""An installation that lacks one of its dependencies: whoever loads a checkpoint is told, in time and each time."""

from __future__ import annotations

import pytest

from tests.support.installs import Environment

HIDE = "import sys; sys.modules[{!r}] = None\n"
ORDERS = ("import dspatch, deepspeed", "import deepspeed, dspatch")
TRY = """
for _ in range(2):
    try:
        {}
        print("imported")
    except RuntimeError as error:
        print(type(error).__name__, "DSPATCH=0" in str(error))
"""
LOAD = """
{}
for _ in range(2):
    try:
        print(deepspeed.runtime.engine.DeepSpeedEngine().load_checkpoint())
    except RuntimeError as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("order", ORDERS)
def test_without_wrapt_the_import_raises_each_time(order: str, checkout: Environment) -> None:
    """The second import must not pass for armed."""
    code = HIDE.format("wrapt") + TRY.format(order)
    assert checkout.code(code).out.splitlines() == ["PatchFailed True"] * 2
    assert checkout.code(code, DSPATCH="0").out.splitlines() == ["imported"] * 2
    assert checkout.code(TRY.format(order)).out.splitlines() == ["imported"] * 2


@pytest.mark.parametrize("order", ORDERS)
def test_without_wrapt_it_is_an_error_in_the_log_if_so_wished(order: str, checkout: Environment) -> None:
    done = checkout.code(HIDE.format("wrapt") + TRY.format(order), DSPATCH_MODE="warn")
    assert done.out.splitlines() == ["imported"] * 2
    assert done.err.count("dspatch could not start, so no checkpoint load would be checked") == 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("missing", ["yaml", "packaging"])
def test_without_what_the_matrix_needs_each_load_raises(missing: str, order: str, checkout: Environment) -> None:
    code = HIDE.format(missing) + LOAD.format(order)
    assert checkout.code(code).out.splitlines() == ["PatchFailed"] * 2
    assert checkout.code(code, DSPATCH="0").out.splitlines() == ["load_checkpoint"] * 2
    lowered = checkout.code(code, DSPATCH_MODE="warn")
    assert lowered.out.splitlines() == ["load_checkpoint"] * 2
    assert missing in lowered.err
