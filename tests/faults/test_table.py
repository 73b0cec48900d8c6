"""The table in docs/faults.md follows the catalogue, and nothing in it failed when it was written."""

from __future__ import annotations

import pytest

from dspatch.patching.matrix import Fault, load
from tests.support.fault_table import FAMILIES, TABLE, Results, cells, rows_of

FAULTS = [one for one in load().faults if one.id[0] in FAMILIES]


def test_the_table_lists_the_families() -> None:
    assert list(rows_of(TABLE)) == [one.id for one in FAULTS], "run `make faults`"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.id)
def test_a_row_follows_the_catalogue(fault: Fault) -> None:
    row = rows_of(TABLE)[fault.id]
    escaped = [cell.replace("|", "\\|") for cell in (*cells(fault), fault.note)]
    assert [*row[:-2], row[-1]] == escaped, "run `make faults`"
    assert "failed" not in row[-2]
    assert "not in this run" not in row[-2]
    assert ("passed" in row[-2]) == bool(fault.shown)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.id)
def test_no_fault_of_these_families_is_left_open(fault: Fault) -> None:
    assert fault.does not in ("not yet", "not shown")


def test_a_part_of_the_tests_replaces_only_its_own_results() -> None:
    first, *others = [one for one in FAULTS if one.shown]
    part = Results({(name, ""): "failed" for name in first.shown}, rows_of(TABLE))
    assert part.of(first) == f"{len(first.shown)} failed"
    whole = Results({(name, ""): "failed" for name in first.shown})
    for other in others:
        if not set(other.shown) & set(first.shown):
            assert part.of(other) == rows_of(TABLE)[other.id][-2]
            assert "not in this run" in whole.of(other)
