"""An inspection as one page. The grid has one cell for each file, in the order of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dspatch.offline import report
from dspatch.offline.blocks import (
    MOST_CELLS,
    bars,
    cell,
    definitions,
    finding,
    frame,
    grid,
    table,
    text,
    verdict,
)
from dspatch.offline.findings import WHOLE, Finding
from dspatch.offline.inspection import Inspection
from dspatch.offline.judge import Judged
from dspatch.offline.summary import summary
from dspatch.offline.text import size

_CLASS = {"error": "bad", "warning": "warn", "info": "dim"}


def page(found: Inspection, version: str) -> str:
    """The page as text.

    Args:
        found: the inspection.
        version: of dspatch.
    """
    return frame(f"{found.verdict}: {found.survey.folder}", _body(found), version)


def _body(found: Inspection) -> Iterator[str]:
    survey = found.survey
    yield f"<h1>{text(survey.folder)}</h1>"
    yield _verdict(found.verdict)
    for note in survey.notes:
        yield f'<p class="dim">{text(note)}</p>'
    if survey.tags:
        whole = found.newest_whole
        yield f"<p>Newest whole tag: {f'<code>{text(whole)}</code>' if whole is not None else '<b>none</b>'}</p>"
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
        yield "<h2>Other tags</h2>" + table(("tag", "verdict"), ((tag, verdict) for tag, verdict in others.items()))


def _tag(judged: Judged) -> Iterator[str]:
    facts = summary(judged)
    yield f"<h2>{text(judged.tag)}</h2>"
    yield _verdict(judged.verdict, judged.why)
    yield from _findings(judged.findings)
    yield "<h3>Facts</h3>" + definitions(_facts(facts))
    if facts["components"]:
        rows = [(name, f"{one['tensors']:,}", f"{one['elements']:,}", size(one["bytes"]))
                for name, one in facts["components"].items()]  # fmt: skip
        yield "<h3>Components</h3>" + table(("component", "tensors", "elements", "size"), rows, numbers=(1, 2, 3))
    yield from _grid(judged)
    counted = report.magnitudes(judged)
    if counted:
        yield '<h3>Magnitudes of moments</h3><p class="dim">A sample of each tensor, by power of two.</p>' + bars(
            {f"2<sup>{key}</sup>": number for key, number in counted.items()}
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
    rates = (f"{one:g}" if isinstance(one, int | float) else str(one) for one in facts["lr"])
    yield "learning rate", ", ".join(rates) or "unknown"
    yield "scheduler", "yes" if facts["scheduler"] else "no"
    yield "loss scale", str(facts["scaler"].get("cur_scale", "unknown")) if facts["scaler"] else "none"
    yield "client state", ", ".join(facts["client_keys"]) or "none"
    parameters = facts["parameters"]
    if parameters["trained"]:
        yield "parameters", f"{parameters['trained']:,} trained, {parameters['frozen']:,} frozen"


def _grid(judged: Judged) -> Iterator[str]:
    files = report.files(judged)
    drawn = files if len(files) <= MOST_CELLS else [one for one in files if one["status"] != "ok"][:MOST_CELLS]
    yield f"<h3>Files</h3><p>{len(files):,} files, {sum(1 for one in files if one['status'] == 'ok'):,} ok.</p>"
    warned = {one.file for one in judged.findings if one.severity == "warning"}
    cells = []
    for one in drawn:
        kind = "" if one["status"] == "ok" else "warn" if one["name"] in warned else "bad"
        weight = size(one["size"]) if one["size"] is not None else "-"
        rank = f"rank {one['rank']}" if one["rank"] is not None else one["kind"] or "file"
        cells.append(cell(kind, one["name"], f"{rank}: {one['status']}", f"{one['kind'].replace('_', ' ')}, {weight}"))
    yield grid(cells, len(files) - len(drawn))


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    for one in findings:
        rows = (("expected", one.expected), ("found", one.found), ("do", one.do))
        yield finding(_CLASS[one.severity], one.id, one.text, rows)


def _resume(found: Inspection) -> Iterator[str]:
    answer = found.resume
    assert answer is not None
    yield f"<h2>{answer.ranks} ranks at stage {answer.stage}: {text(answer.answer)}</h2><p>{text(answer.why)}</p>"
    rows = [("run", one) for one in answer.commands] + [("load with", one) for one in answer.load]
    yield definitions([*rows, *(("not restored", one) for one in answer.losses)])


def _verdict(word: str, why: str = "") -> str:
    return verdict("good" if word == WHOLE else "bad", word, why)


def _or(value: object) -> str:
    return "unknown" if value is None else str(value)
