"""What a process pays for dspatch before deepspeed is imported: a set of modules, which unlike seconds does not flicker."""

from __future__ import annotations

import pytest

from tests.support.installs import Environment

#: `import os` and `__future__` are in nearly every process; `-S` keeps what site would load out of the picture.
NEW_MODULES = """
import os, sys, __future__
before = set(sys.modules)
import dspatch
print(*sorted(set(sys.modules) - before))
"""


def test_importing_dspatch_loads_four_small_modules(checkout: Environment) -> None:
    done = checkout.code(NEW_MODULES, "-S")
    assert done.out.split() == ["dspatch", "dspatch.activation", "dspatch.activation.finder", "dspatch.settings"]
    assert done.err == ""


def test_the_rest_comes_with_deepspeed(checkout: Environment) -> None:
    done = checkout.code("import dspatch, look; print(look.loaded()); import deepspeed; print(look.loaded())")
    assert done.out.splitlines() == ["[]", "['wrapt', 'yaml', 'packaging']"]


@pytest.mark.parametrize(("switch", "loads"), [("0", "[]"), ("1", "['wrapt', 'yaml', 'packaging']")])
def test_switched_off_the_rest_never_comes(switch: str, loads: str, checkout: Environment) -> None:
    done = checkout.code("import dspatch, deepspeed, look; print(look.loaded())", DSPATCH=switch)
    assert done.out.splitlines() == [loads]


@pytest.mark.parametrize(
    ("switch", "loads"),
    [
        (None, []),
        ("", []),
        ("0", ["_dspatch_startup"]),
        ("1", ["_dspatch_startup", "dspatch", "dspatch.activation", "dspatch.activation.finder", "dspatch.settings"]),
    ],
)
def test_what_the_startup_file_loads(switch: str | None, loads: list[str], wheel: Environment) -> None:
    done = wheel.code("import sys; print(*sorted(name for name in sys.modules if 'dspatch' in name))", DSPATCH=switch)
    assert done.out.split() == loads


def test_using_a_public_name_loads_its_home_only(checkout: Environment) -> None:
    done = checkout.code("import dspatch, look; dspatch.settings(); dspatch.SettingsError; print(look.loaded())")
    assert done.out.splitlines() == ["[]"]


def test_every_public_name_is_there(checkout: Environment) -> None:
    code = """
import dspatch
assert set(dspatch.__all__) <= set(dir(dspatch))
for name in dspatch.__all__:
    assert getattr(dspatch, name) is getattr(dspatch, name), name
assert not hasattr(dspatch, "no_such_name")
"""
    done = checkout.code(code)
    assert done.code == 0, done.err
