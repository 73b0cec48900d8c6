"""The matrix, and a check of it, as tables for people: plain text for a terminal, Markdown for the README."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dspatch.patching.check import Checked
from dspatch.patching.matrix import Matrix, Row

_HEADINGS = ("patch", "site", "DeepSpeed", "tested with", "does", "why", "faults")
_CHECK_HEADINGS = ("patch", "site", "state", "do")


def plain(matrix: Matrix) -> str:
    """The rows with padded columns, without the sentence that would make them too wide."""
    without_why = [[*cells[:5], cells[6]] for cells in map(_cells, matrix.rows)]
    return _pad([[*_HEADINGS[:5], _HEADINGS[6]], *without_why])


def markdown(matrix: Matrix) -> str:
    """The rows as a Markdown table; the README holds exactly this text."""
    return _markdown([_HEADINGS, *(_cells(row, code="`") for row in matrix.rows)])


def plain_check(checked: Iterable[Checked]) -> str:
    """What a check found, with padded columns."""
    return _pad([_CHECK_HEADINGS, *(_check_cells(item) for item in checked)])


def short_site(site: str) -> str:
    """A site without the parts that all of them share: ``engine:DeepSpeedEngine.load_checkpoint``."""
    module, _, qualname = site.partition(":")
    return f"{module.rpartition('.')[2]}:{qualname}"


def as_data(row: Row) -> dict[str, object]:
    """One row as plain data for ``--json``: the fields of compat_matrix.yaml under their own names, all of them."""
    return {
        "id": row.id,
        "site": row.site,
        "body_of": row.body_of,
        "module": row.module,
        "wrapper": row.wrapper,
        "deepspeed": row.deepspeed.text,
        "tested": list(row.tested),
        "bodies": list(row.bodies),
        "needs": list(row.needs),
        "does": row.does,
        "unknown": row.unknown,
        "why": row.why,
        "faults": list(row.faults),
        "beside": list(row.beside),
        "upstream": {
            "reference": row.upstream.reference,
            "introduced": row.upstream.introduced,
            "fixed_in": row.upstream.fixed_in,
        },
        "scenarios": list(row.scenarios),
    }


def check_as_data(item: Checked) -> dict[str, object]:
    """One result of a check as plain data for ``--json``."""
    return {"id": item.row.id, "site": item.row.site, "state": item.state, "body": item.body, "do": item.do}


def _cells(row: Row, code: str = "") -> list[str]:
    def quoted(text: str) -> str:
        return f"{code}{text}{code}"

    faults = ", ".join(row.faults) or "in no upstream release" * (row.does == "repairs")
    return [
        quoted(row.id),
        quoted(short_site(row.site)),
        quoted(row.deepspeed.text),
        ", ".join(row.tested),
        row.does,
        row.why,
        faults,
    ]


def _check_cells(item: Checked) -> list[str]:
    return [item.row.id, short_site(item.row.site), item.state, item.do]


def _pad(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    return "\n".join(padded)


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]
    return "\n".join([rows[0], f"|{'---|' * len(lines[0])}", *rows[1:]])
