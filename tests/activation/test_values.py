"""A wrong `DSPATCH*` value is an error that lists the right ones, said where a user sees it and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspatch.errors import SettingsError
from dspatch.settings import CHOICES, KNOWN, NUMBERS, OFF_WORDS, ON_WORDS, TEXTS, Settings, read
from tests.support.installs import Environment, run

WRONG = [
    ("DSPATCH", "2", [*ON_WORDS, *OFF_WORDS]),
    ("DSPATCH", "offf", [*ON_WORDS, *OFF_WORDS]),
    *((name, "strcit", [word for word in allowed if word]) for name, allowed in CHOICES.items()),
    *((name, value, ["a number, at least"]) for name in NUMBERS for value in ("soon", "-1", "nan", "inf", "1e999")),
    ("DSPATCH_MOED", "warn", list(KNOWN)),
    ("DSPATCH_", "", list(KNOWN)),
    ("DSPATCH_mode", "warn", list(KNOWN)),
]


@pytest.mark.parametrize(("name", "value", "right"), WRONG)
def test_wrong(name: str, value: str, right: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        read({name: value})
    text = str(caught.value)
    for word in (name, *right, "correct or unset"):
        assert word in text
    assert repr(value) in text or value == "" or name not in KNOWN


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, word) for name, allowed in CHOICES.items() for word in allowed]
    + [(name, text) for name in NUMBERS for text in ("1", "2.5", " 60 ")]
    + [(name, text) for name in TEXTS for text in ("", "a,b")],
)
def test_right(name: str, value: str) -> None:
    attribute = name.removeprefix("DSPATCH_").lower()
    for written in (value, value.upper(), f" {value} "):
        found = getattr(read({name: written}), attribute)
        if name in CHOICES:
            assert found == (value or CHOICES[name][0])
        elif name in NUMBERS:
            assert found == type(found)(float(value))
        elif name == "DSPATCH_DISABLE":
            assert found == tuple(word for word in written.strip().split(",") if word)
        else:
            assert found == written.strip()


def test_without_variables_the_first_word_of_each() -> None:
    for settings in (read({}), read({"DSPATCHER": "another program's", "PATH": "/"}), read(dict.fromkeys(KNOWN, ""))):
        assert settings.switch == "unset"
        assert settings.disable == ()
        for name, allowed in CHOICES.items():
            assert settings.as_dict()[name.removeprefix("DSPATCH_").lower()] == allowed[0]


def test_settings_are_frozen() -> None:
    settings = read({})
    with pytest.raises(AttributeError, match="frozen"):
        settings.mode = "warn"
    assert isinstance(settings, Settings) and settings.mode == "strict"


JUNK = [("DSPATCH", "maybe", "one of 1, on, true, yes, 0, off, false, no"),
        ("DSPATCH_MODE", "strcit", "one of strict, warn, observe"),
        ("DSPATCH_MOED", "warn", "DSPATCH_MOED is not a dspatch variable")]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "said"), JUNK)
def test_importing_dspatch_says_it_each_time(name: str, value: str, said: str, checkout: Environment) -> None:
    code = """
for _ in range(2):
    try:
        import dspatch
    except ValueError as error:
        print(type(error).__name__, error)
import dspatch
"""
    done = checkout.code(code, **{name: value})
    assert done.code == 1
    assert done.out.count("SettingsError") == done.out.count(said) == 2
    assert said in done.err


@pytest.mark.parametrize(("name", "value", "said"), JUNK)
def test_the_startup_file_says_it_to_those_who_import_deepspeed(
    name: str, value: str, said: str, wheel: Environment
) -> None:
    environ = {"DSPATCH": "1", name: value}
    unrelated = wheel.code("import json, importlib.util as u; assert u.find_spec('deepspeed')", **environ)
    assert (unrelated.code, unrelated.out, unrelated.err) == (0, "", "")
    code = """
import sys
for _ in range(2):
    try:
        import deepspeed
    except ValueError as error:
        print(error)
assert "deepspeed" not in sys.modules
"""
    done = wheel.code(code, **environ)
    assert (done.code, done.err) == (0, "")
    assert done.out.count(said) == 2


def test_the_startup_file_is_content_with_corrected_variables(wheel: Environment) -> None:
    code = """
import os
try:
    import deepspeed
except ValueError:
    os.environ["DSPATCH_MODE"] = "warn"
import dspatch, deepspeed, look
print(look.guards(), dspatch.settings().mode)
"""
    assert wheel.code(code, DSPATCH="1", DSPATCH_MODE="strcit").out == "1 warn\n"


def test_switched_on_and_all_right_nothing_is_raised(wheel: Environment) -> None:
    environ = {"DSPATCH": "1", "DSPATCH_MODE": "warn", "DSPATCH_TIMEOUT": "5"}
    done = wheel.code("import deepspeed, dspatch, look; print(look.guards(), dspatch.settings().timeout)", **environ)
    assert done.out == "1 5.0\n"


@pytest.mark.parametrize(("name", "value", "said"), JUNK)
def test_the_command_says_it_without_a_traceback(name: str, value: str, said: str, wheel: Environment) -> None:
    done = run([wheel.folder / "bin" / "dspatch", "--version"], **{name: value})
    assert (done.code, done.out) == (2, "")
    assert said in done.err and "Traceback" not in done.err
    assert run([wheel.folder / "bin" / "dspatch", "--version"]).code == 0
    done = run([wheel.python, "-m", "dspatch", "--version"], **{name: value})
    assert (done.code, done.out) == (2, ""), done.err
    assert done.err == run([wheel.folder / "bin" / "dspatch", "--version"], **{name: value}).err


def test_python_m_of_another_package_gets_the_error_itself(wheel: Environment, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text("import dspatch\n")
    (tmp_path / "other" / "__main__.py").write_text("print('on')\n")
    for options in (("-m", "other", "dspatch"), ("-W", "ignore", "-m", "other")):
        done = run([wheel.python, *options], tmp_path, DSPATCH_MODE="strcit")
        assert done.code == 1 and "SettingsError" in done.err and "Traceback" in done.err
        assert run([wheel.python, *options], tmp_path).out == "on\n"
    for options in (("-mdspatch",), ("-Wignore", "-m", "dspatch"), ("-X", "utf8", "-m", "dspatch")):
        done = run([wheel.python, *options, "--version"], DSPATCH_MODE="strcit")
        assert done.code == 2 and "Traceback" not in done.err, options


def test_doctor_comes_up_with_a_wrong_variable_either_way(wheel: Environment) -> None:
    for command in ([wheel.folder / "bin" / "dspatch"], [wheel.python, "-m", "dspatch"]):
        done = run([*command, "doctor"], DSPATCH_MODE="strcit")
        assert "Traceback" not in done.err and "strcit" in done.out
