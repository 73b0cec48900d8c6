"""`DSPATCH=0|off|false|no` beats everything that code says; every other allowed value lets code have its way."""

from __future__ import annotations

import pytest

from dspatch.settings import OFF_WORDS, ON_WORDS
from tests.support.installs import Environment

WAYS = {
    "import before": "import dspatch, deepspeed",
    "import after": "import deepspeed, dspatch",
    "activate() before": "import dspatch; dspatch.activate(mode='strict'); import deepspeed",
    "activate() after": "import deepspeed, dspatch; dspatch.deactivate(); dspatch.activate()",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("switch", "guards"), [("0", 0), (None, 1), ("1", 1)])
def test_each_way_to_arm(way: str, switch: str | None, guards: int, checkout: Environment) -> None:
    done = checkout.code(f"{WAYS[way]}\nimport look; print(look.guards(), dspatch.settings().switch)", DSPATCH=switch)
    state = {"0": "off", "1": "on", None: "unset"}[switch]
    assert done.out == f"{guards} {state}\n", done.err


@pytest.mark.parametrize("word", [*OFF_WORDS, "OFF", " No "])
def test_off_words(word: str, wheel: Environment) -> None:
    done = wheel.code("import dspatch, deepspeed, look; print(look.guards())", DSPATCH=word)
    assert (done.out, done.err) == ("0\n", "")


@pytest.mark.parametrize("word", [*ON_WORDS, "ON", " Yes "])
def test_on_words_need_no_import(word: str, wheel: Environment) -> None:
    assert wheel.code("import deepspeed, look; print(look.guards())", DSPATCH=word).out == "1\n"


@pytest.mark.parametrize("word", [None, "", " "])
def test_unset_only_the_import_arms(word: str | None, wheel: Environment) -> None:
    done = wheel.code(
        "import deepspeed, look; print(look.guards()); import dspatch; print(look.guards())", DSPATCH=word
    )
    assert done.out.split() == ["0", "1"]


def test_activate_says_that_it_did_nothing(checkout: Environment) -> None:
    code = "import dspatch\nfor _ in range(2): dspatch.activate()\nprint({row.reason for row in dspatch.status()})"
    done = checkout.code(code, DSPATCH="off")
    assert done.err.count("activate() did nothing") == 1
    assert done.out == "{'DSPATCH is off'}\n"
    assert checkout.code(code).err == ""


def test_the_log_tells_on_request(checkout: Environment) -> None:
    done = checkout.code("import dspatch, deepspeed", DSPATCH="no", DSPATCH_LOG_LEVEL="info")
    assert "dspatch INFO: off: DSPATCH is set to an off word" in done.err
