"""An inspection as one page: no network, no script, readable on a phone and without colour.

Every state has a word beside its colour. The grid has one cell for each file, in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from dspatch.offline import report
from dspatch.offline.findings import WHOLE, Finding
from dspatch.offline.inspection import Inspection
from dspatch.offline.judge import Judged
from dspatch.offline.summary import summary
from dspatch.offline.text import shown, size

#: Cells drawn; of more files only those with something to say are.
_MOST_CELLS = 4_096
_BAR = 100

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
th{overflow-wrap:normal}th.number{text-align:right}
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
.bars{width:100%;max-width:40rem}.bars td{border:0;padding:.05rem .5rem .05rem 0}
.bars span{display:inline-block;height:.8rem;background:currentColor;opacity:.55}
@media print{.grid li,.finding{break-inside:avoid}}
"""

_CLASS = {"error": "bad", "warning": "warn", "info": "dim"}
_WORD = {"error": "Error", "warning": "Warning", "info": "Note"}


def page(found: Inspection, version: str) -> str:
    """The page as text.

    Args:
        found: the inspection.
        version: of dspatch.
    """
    title = f"{found.verdict}: {shown(found.survey.folder)}"
    return "\n".join([
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>", *_body(found),
        f'<p class="dim">dspatch {_text(version)}</p></body></html>', "",
    ])  # fmt: skip


def _body(found: Inspection) -> Iterator[str]:
    survey = found.survey
    yield f"<h1>{_text(survey.folder)}</h1>"
    yield _verdict(found.verdict, "")
    for note in survey.notes:
        yield f'<p class="dim">{_text(note)}</p>'
    if survey.tags:
        whole = found.newest_whole
        yield f"<p>Newest whole tag: {f'<code>{_text(whole)}</code>' if whole is not None else '<b>none</b>'}</p>"
    yield from _findings(found.findings)
    for judged in found.tags:
        yield from _tag(judged)
    if found.deep is not None:
        deep = found.deep
        stopped = ", stopped before the end" if deep.stopped else ""
        yield (f"<h2>Deep check</h2><p>{size(deep.done)} of {size(deep.total)} read, {deep.files_done:,} of {deep.files:,} "
               f"files entirely{stopped}.</p>")  # fmt: skip
    if found.resume is not None:
        yield from _resume(found)
    others = {tag: verdict for tag, verdict in found.looked_at.items() if tag not in {one.tag for one in found.tags}}
    if others:
        yield "<h2>Other tags</h2>" + _table(("tag", "verdict"), ((tag, verdict) for tag, verdict in others.items()))


def _tag(judged: Judged) -> Iterator[str]:
    facts = summary(judged)
    yield f"<h2>{_text(judged.tag)}</h2>"
    yield _verdict(judged.verdict, judged.why)
    yield from _findings(judged.findings)
    yield "<h3>Facts</h3>" + _definitions(_facts(facts))
    if facts["components"]:
        rows = [(name, f"{one['tensors']:,}", f"{one['elements']:,}", size(one["bytes"]))
                for name, one in facts["components"].items()]  # fmt: skip
        yield "<h3>Components</h3>" + _table(("component", "tensors", "elements", "size"), rows, numbers=(1, 2, 3))
    yield from _grid(judged)
    counted = report.magnitudes(judged)
    if counted:
        yield '<h3>Magnitudes of moments</h3><p class="dim">A sample of each tensor, by power of two.</p>' + _bars(
            counted
        )


def _facts(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "written by", f"DeepSpeed {_or(facts['ds_version'])}, torch {_or(facts['torch_format'])}"
    form = ", universal" if facts["universal"] else ", pipeline" if facts["pipeline"] else ""
    yield "stage", f"{_or(facts['stage'])}{form}"
    yield "precision", _or(facts["precision"])
    yield "ranks", f"{facts['data_parallel']} data-parallel, {facts['model_parallel']} model-parallel"
    if facts["experts"]:
        yield "experts", ", ".join(map(str, facts["experts"]))
    yield (
        "step",
        f"{_or(facts['global_steps'])}, {_or(facts['skipped_steps'])} skipped, {_or(facts['global_samples'])} samples",
    )
    yield (
        "optimizer",
        f"{_or(facts['optimizer'])}, step {', '.join(f'{one:g}' for one in facts['optimizer_steps']) or 'unknown'}",
    )
    yield "learning rate", ", ".join(map(str, facts["lr"])) or "unknown"
    yield "scheduler", "yes" if facts["scheduler"] else "no"
    yield "loss scale", str(facts["scaler"].get("cur_scale", "unknown")) if facts["scaler"] else "none"
    yield "client state", ", ".join(facts["client_keys"]) or "none"
    parameters = facts["parameters"]
    if parameters["trained"]:
        yield "parameters", f"{parameters['trained']:,} trained, {parameters['frozen']:,} frozen"


def _grid(judged: Judged) -> Iterator[str]:
    files = report.files(judged)
    drawn = files if len(files) <= _MOST_CELLS else [one for one in files if one["status"] != "ok"][:_MOST_CELLS]
    yield f"<h3>Files</h3><p>{len(files):,} files, {sum(1 for one in files if one['status'] == 'ok'):,} ok.</p>"
    yield '<ul class="grid">'
    warned = {one.file for one in judged.findings if one.severity == "warning"}
    for one in drawn:
        kind = "" if one["status"] == "ok" else "warn" if one["name"] in warned else "bad"
        weight = size(one["size"]) if one["size"] is not None else "-"
        rank = f"rank {one['rank']}" if one["rank"] is not None else one["kind"] or "file"
        yield (f'<li class="{kind}" title="{_text(one["name"])}"><b>{_text(rank)}: {_text(one["status"])}</b>'
               f"{_text(one['kind'])}, {weight}</li>")  # fmt: skip
    yield "</ul>"
    if len(drawn) < len(files):
        yield f'<p class="dim">{len(files) - len(drawn):,} files are not drawn.</p>'


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    for one in findings:
        rows = [
            (label, value)
            for label, value in (("expected", one.expected), ("found", one.found), ("do", one.do))
            if value
        ]
        yield (f'<div class="finding {_CLASS[one.severity]}"><b>{_WORD[one.severity]}</b> <code>{_text(one.id)}</code> '
               f"{_text(one.text)}{_definitions(rows) if rows else ''}</div>")  # fmt: skip


def _resume(found: Inspection) -> Iterator[str]:
    answer = found.resume
    assert answer is not None
    yield f"<h2>{answer.ranks} ranks at stage {answer.stage}: {_text(answer.answer)}</h2><p>{_text(answer.why)}</p>"
    rows = [("run", one) for one in answer.commands] + [("load with", one) for one in answer.load]
    yield _definitions([*rows, *(("not restored", one) for one in answer.losses)])


def _verdict(verdict: str, why: str) -> str:
    kind = "good" if verdict == WHOLE else "bad"
    return f'<p class="verdict {kind}">{_text(verdict)}{f": {_text(why)}" if why else ""}</p>'


def _bars(counted: Mapping[str, int]) -> str:
    most = max(counted.values())
    rows = "".join(f'<tr><td class="number">2<sup>{key}</sup></td><td class="number">{number:,}</td>'
                   f'<td><span style="width:{max(1, round(number / most * _BAR)) / 10:.1f}rem"></span></td></tr>'
                   for key, number in counted.items())  # fmt: skip
    return f'<table class="bars">{rows}</table>'


def _table(head: Sequence[str], rows: Any, numbers: Sequence[int] = ()) -> str:
    return f"<table>{_row('th', head, numbers)}{''.join(_row('td', row, numbers) for row in rows)}</table>"


def _row(tag: str, cells: Sequence[object], numbers: Sequence[int]) -> str:
    kinds = (' class="number"' if at in numbers else "" for at in range(len(cells)))
    return f"<tr>{''.join(f'<{tag}{kind}>{_text(one)}</{tag}>' for kind, one in zip(kinds, cells, strict=True))}</tr>"


def _definitions(rows: Any) -> str:
    return "<dl>" + "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in rows) + "</dl>"


def _text(value: object) -> str:
    return escape(shown(value))


def _or(value: object) -> str:
    return "unknown" if value is None else str(value)
