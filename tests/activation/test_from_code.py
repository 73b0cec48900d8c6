"""`dspatch.activate`, `deactivate`, `status` and `settings`, called from a script."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tests.support.installs import Ended, Environment

START = """
import dspatch
def states(): return {row.state for row in dspatch.status()}
def reasons(): return {row.reason for row in dspatch.status()}
"""


def code(checkout: Environment, text: str, **environ: str) -> Ended:
    done = checkout.code(START + dedent(text), **environ)
    assert done.code == 0, done.err
    return done


def test_on_and_off_around_the_import(checkout: Environment) -> None:
    code(
        checkout,
        """
        assert (states(), reasons()) == ({"armed"}, {"until deepspeed is imported"})
        dspatch.deactivate(); dspatch.deactivate()
        assert (states(), reasons()) == ({"not triggered"}, {"deactivated"})
        import deepspeed, look
        assert look.guards() == 0
        assert (states(), reasons()) == ({"not triggered"}, {"deactivated"})
        dspatch.activate(); dspatch.activate()
        assert look.guards() == 1 and "applied" in states()
        assert {row.version for row in dspatch.status()} == {"source tree"}
        dspatch.deactivate()
        assert look.guards() == 0 and states() == {"not triggered"}
        """,
    )


def test_again_with_the_same_settings_touches_nothing(checkout: Environment) -> None:
    """Another thread may be loading just now."""
    code(
        checkout,
        """
        import deepspeed, importlib
        wrapper = lambda: vars(deepspeed.runtime.engine.DeepSpeedEngine)["load_checkpoint"]
        before = wrapper()
        dspatch.activate()
        assert wrapper() is before
        dspatch.activate(mode="warn")
        assert wrapper() is not before, "put on anew, with the new settings"
        importlib.reload(dspatch)
        assert dspatch.settings().mode == "warn", "a reload changes nothing"
        """,
    )


def test_the_very_objects_come_back(checkout: Environment) -> None:
    code(
        checkout,
        """
        dspatch.deactivate()
        import deepspeed
        from deepspeed.runtime.engine import DeepSpeedEngine
        before = dict(vars(DeepSpeedEngine))
        dspatch.activate()
        assert any(vars(DeepSpeedEngine)[name] is not value for name, value in before.items())
        dspatch.deactivate()
        assert all(vars(DeepSpeedEngine)[name] is value for name, value in before.items())
        """,
    )


def test_one_row_per_row_of_the_matrix(checkout: Environment) -> None:
    code(
        checkout,
        """
        from dspatch.patching.matrix import load
        sites = [(row.id, row.site) for row in load().rows]
        assert [(row.patch, row.site) for row in dspatch.status()] == sites
        import deepspeed
        assert [(row.patch, row.site) for row in dspatch.status()] == sites
        assert all(row.reason for row in dspatch.status() if row.state == "skipped")
        """,
    )


def test_arguments_beat_variables(checkout: Environment) -> None:
    code(
        checkout,
        """
        assert dspatch.settings().mode == "observe"
        chosen = dspatch.activate(mode="warn", timeout=5, threads=2, disable=("load-guard", "weights-tag"), tags=None)
        assert chosen is dspatch.settings()
        assert (chosen.mode, chosen.timeout, chosen.threads) == ("warn", 5.0, 2)
        assert chosen.disable == ("load-guard", "weights-tag")
        assert chosen.tags == "error", "None leaves the variable in force"
        assert dspatch.activate(disable="load-guard").disable == ("load-guard",)
        assert dspatch.activate().mode == "observe", "the variables again"
        """,
        DSPATCH_MODE="observe",
        DSPATCH_TAGS="error",
    )


@pytest.mark.parametrize(
    "before",
    [
        "",
        "import importlib.util as u; assert u.find_spec('deepspeed')",  # as libraries do that only look
        "import deepspeed",
        "dspatch.deactivate()",
        "dspatch.deactivate(); import deepspeed",
    ],
)
def test_new_arguments_take_whatever_came_before(before: str, checkout: Environment) -> None:
    text = """
    {before}
    dspatch.activate({arguments})
    import deepspeed, look
    print(look.guards())
    """
    assert code(checkout, text.format(before=before, arguments="disable='load-guard'")).out == "0\n"
    assert code(checkout, text.format(before=before, arguments="")).out == "1\n"


def test_looked_for_and_not_imported_is_armed(checkout: Environment) -> None:
    code(
        checkout,
        """
        import importlib.util
        assert importlib.util.find_spec("deepspeed")
        assert states() == {"armed"}, (states(), reasons())
        dspatch.deactivate()
        assert (states(), reasons()) == ({"not triggered"}, {"deactivated"})
        import deepspeed, look
        assert look.guards() == 0
        """,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("moed='warn'", "one of mode, tags,"),
        ("switch='off'", "one of mode, tags,"),
        ("mode='strcit'", "one of strict, warn, observe"),
        ("mode=True", "one of strict, warn, observe"),
        ("timeout='soon'", "a number, at least 1"),
        ("timeout=0", "a number, at least 1"),
    ],
)
def test_wrong_arguments_change_nothing(arguments: str, said: str, checkout: Environment) -> None:
    code(
        checkout,
        f"""
        before = dspatch.settings()
        try:
            dspatch.activate({arguments})
        except dspatch.SettingsError as error:
            assert {said!r} in str(error), error
        else:
            raise SystemExit("accepted")
        assert dspatch.settings() is before
        import deepspeed, look
        assert look.guards() == 1
        """,
    )


def test_a_variable_that_went_wrong_since_stops_activate(checkout: Environment) -> None:
    code(
        checkout,
        """
        import os
        os.environ["DSPATCH_MODE"] = "strcit"
        try:
            dspatch.activate()
        except dspatch.SettingsError:
            os.environ["DSPATCH_MODE"] = "warn"
        assert dspatch.settings().mode == "strict", "read once"
        assert dspatch.activate().mode == "warn"
        """,
    )


def test_switched_off_since_and_on_again(checkout: Environment) -> None:
    code(
        checkout,
        """
        import os
        import deepspeed, look
        os.environ["DSPATCH"] = "0"
        dspatch.activate()
        assert look.guards() == 0 and reasons() == {"DSPATCH is off"}
        os.environ["DSPATCH"] = "1"
        dspatch.activate()
        assert look.guards() == 1
        """,
    )


def test_a_plain_checkout_without_an_installation(checkout: Environment) -> None:
    """Nobody can say its version, and asking must not raise anything else than an attribute does."""
    code = "import dspatch; print(hasattr(dspatch, '__version__'))"
    assert checkout.code(code, "-S").out == "False\n"
    assert checkout.code(code).out == "True\n"
