"""What pages of dspatch are made of: no network, no script, readable on a phone and without colour.

Every state has a word beside its colour, and a border of its own kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import isfinite

from dspatch.offline.text import shown

#: Cells drawn in a grid; of more only those with something to say are.
MOST_CELLS = 4_096

_STYLE = """
:root{color-scheme:light dark;--line:#8886;--good:#1a7f37;--bad:#c62828;--warn:#8a5a00}
@media(prefers-color-scheme:dark){:root{--good:#57c273;--bad:#ff7b72;--warn:#e3b341}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:72rem;overflow-wrap:anywhere}
h1{font-size:1.3rem;margin:.2rem 0}h2{font-size:1.1rem;margin:2rem 0 .3rem}h3{font-size:1rem;margin:1.2rem 0 .3rem}
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}.dim{opacity:.7}
.verdict{font-weight:700;font-size:1.15rem}
table{border-collapse:collapse;width:100%;display:block;overflow-x:auto}
th,td{text-align:left;padding:.2rem .7rem .2rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th,td{overflow-wrap:normal}th.number{text-align:right}
td.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(8.5rem,1fr));gap:.4rem;padding:0;list-style:none}
.grid li{border:2px solid var(--good);border-radius:.4rem;padding:.3rem .5rem;font-size:.85rem;line-height:1.3}
.grid li.bad{border-color:var(--bad);border-style:dashed;color:inherit}
.grid li.warn{border-color:var(--warn);border-style:dotted;color:inherit}
.grid b{display:block}
.finding{border-left:.3rem solid var(--line);padding:.1rem .7rem;margin:.6rem 0}
.finding.bad{border-color:var(--bad);color:inherit}.finding.warn{border-color:var(--warn);color:inherit}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem .8rem;margin:.2rem 0}dt{opacity:.7}dd{margin:0}
code{background:#8883;padding:.05rem .3rem;border-radius:.2rem}
.bars{display:table;max-width:40rem}.bars td{border:0;padding:.05rem .5rem .05rem 0;width:1%;vertical-align:middle}
sup{line-height:0}.bars td:last-child{width:98%}
.bars span{display:block;height:.8rem;background:currentColor;opacity:.55}
@media print{.grid li,.finding{break-inside:avoid}}
"""

_WORD = {"bad": "Error", "warn": "Warning", "dim": "Note"}


def frame(title: str, body: Iterable[str], version: str) -> str:
    """A whole page.

    Args:
        title: as plain text.
        body: HTML.
        version: of dspatch.
    """
    return "\n".join([
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{text(title)}</title><style>{_STYLE}</style></head><body>", *body,
        f'<p class="dim">dspatch {text(version)}</p></body></html>', "",
    ])  # fmt: skip


def verdict(kind: str, word: str, why: str = "") -> str:
    """The line that counts; ``kind`` is ``good``, ``warn`` or ``bad``."""
    return f'<p class="verdict {kind}">{text(word)}{f": {text(why)}" if why else ""}</p>'


def finding(kind: str, id: str, sentence: str, rows: Iterable[tuple[str, str]]) -> str:
    """One finding; ``kind`` is ``bad``, ``warn`` or ``dim``. Rows without a value are left out."""
    listed = [(label, value) for label, value in rows if value]
    return (f'<div class="finding {kind}"><b>{_WORD[kind]}</b> <code>{text(id)}</code> '
            f"{text(sentence)}{definitions(listed) if listed else ''}</div>")  # fmt: skip


def cell(kind: str, title: str, head: str, rest: str) -> str:
    """One cell of a grid; ``kind`` is empty, ``warn`` or ``bad``."""
    return f'<li class="{kind}" title="{text(title)}"><b>{text(head)}</b>{text(rest)}</li>'


def grid(cells: Sequence[str], left_out: int = 0) -> str:
    """Cells, and how many were not drawn."""
    more = f'<p class="dim">{left_out:,} more are not drawn.</p>' if left_out else ""
    return f'<ul class="grid">{"".join(cells)}</ul>{more}'


def bars(counted: Mapping[str, float], shown_as: str = "{:,}") -> str:
    """A bar for each value, its label in front of it as HTML."""
    most = max((number for number in counted.values() if isfinite(number)), default=0) or 1
    rows = "".join(f'<tr><td class="number">{label}</td><td class="number">{shown_as.format(number)}</td>'
                   f'<td><span style="width:{_share(number, most)}%"></span></td></tr>'
                   for label, number in counted.items())  # fmt: skip
    return f'<table class="bars">{rows}</table>'


def _share(number: float, most: float) -> int:
    return max(1, round(number / most * 100)) if isfinite(number) and number > 0 else 0


def table(head: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()) -> str:
    """A table; columns in ``numbers`` are set as numbers."""
    return f"<table>{_row('th', head, numbers)}{''.join(_row('td', row, numbers) for row in rows)}</table>"


def _row(tag: str, cells: Sequence[object], numbers: Sequence[int]) -> str:
    kinds = (' class="number"' if at in numbers else "" for at in range(len(cells)))
    return f"<tr>{''.join(f'<{tag}{kind}>{text(one)}</{tag}>' for kind, one in zip(kinds, cells, strict=True))}</tr>"


def definitions(rows: Iterable[tuple[str, object]]) -> str:
    """Names and values."""
    return "<dl>" + "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in rows) + "</dl>"


def text(value: object) -> str:
    """Plain text as HTML, without control characters."""
    return escape(shown(value))
