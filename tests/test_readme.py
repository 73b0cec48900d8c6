"""The README says what is: its table is the matrix, its variables are the settings, its commands exist."""

from __future__ import annotations

import re

import pytest

from dspatch.cli.main import COMMANDS
from dspatch.patching.matrix import load
from dspatch.patching.table import markdown
from dspatch.settings import CHOICES, KNOWN
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_is_the_matrix() -> None:
    written = README.partition("<!-- matrix -->\n")[2].partition("<!-- /matrix -->")[0]
    assert written.strip() == markdown(load()).strip(), "paste the output of `dspatch matrix --markdown`"


@pytest.mark.parametrize("variable", KNOWN)
def test_every_variable_is_explained(variable: str) -> None:
    row = re.search(rf"^\| `{variable}` \|(.*)$", README, re.MULTILINE)
    assert row, f"no row for {variable}"
    words = [word for word in CHOICES.get(variable, ()) if word]
    assert [word for word in words if f"`{word}`" not in row[1]] == []
    if words and CHOICES[variable][0]:
        assert f"**`{words[0]}`**" in row[1], "the default is printed bold"


def test_no_variable_is_invented() -> None:
    assert set(re.findall(r"`(DSPATCH_[A-Z_]+)`", README)) <= set(KNOWN)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_named(command: str) -> None:
    there = (ROOT / "dspatch" / "cli" / f"{command}.py").is_file()
    assert (f"`dspatch {command}" in README) == there


def test_the_rooms_of_the_map_exist() -> None:
    listed = README.partition("## Where things are")[2]
    rooms = re.findall(r"`([a-z/]+)/`", listed)
    assert rooms
    for room in rooms:
        assert (ROOT / room).is_dir() or (ROOT / "tests" / room).is_dir(), room
