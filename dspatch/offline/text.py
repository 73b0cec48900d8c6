"""An inspection for people at a terminal: plain lines, each with a style that only colours what the words already say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dspatch.errors import shorten
from dspatch.offline import report
from dspatch.offline.findings import WHOLE, Finding
from dspatch.offline.inspection import Inspection
from dspatch.offline.judge import Judged
from dspatch.offline.summary import summary

#: A line, and how it may be coloured: ``good``, ``bad``, ``warn``, ``dim``, ``head`` or nothing.
Line = tuple[str, str]

_STYLE = {"error": "bad", "warning": "warn", "info": "dim"}
_MARK = {"error": "ERROR", "warning": "WARN ", "info": "note "}
#: Files listed one by one; of more only those with something to say are.
_FILES_SHOWN = 24


def lines(found: Inspection, all_tags: bool = False) -> Iterator[Line]:
    """The whole result.

    Args:
        found: the inspection.
        all_tags: one block for each tag, shorter ones.
    """
    survey = found.survey
    yield shown(survey.folder), "head"
    for note in survey.notes:
        yield f"  {note}", "dim"
    if not found.tags:
        yield f"  {found.verdict}", "bad"
    for one in found.findings:
        yield from _finding(one)
    for judged in found.tags:
        yield "", ""
        yield from _tag(judged, all_tags, found.deep is not None and found.deep.stopped)
    if found.deep is not None:
        yield "", ""
        yield _deep(found), "warn" if found.deep.stopped else ""
    if found.resume is not None:
        yield "", ""
        yield from _resume(found)
    if survey.tags:
        yield "", ""
        others = {
            tag: verdict for tag, verdict in found.looked_at.items() if tag not in {one.tag for one in found.tags}
        }
        if others:
            yield (
                f"also looked at: {shorten((f'{shown(tag)} ({verdict})' for tag, verdict in others.items()), 8)}",
                "dim",
            )
        yield _newest(found)


def _newest(found: Inspection) -> Line:
    if found.newest_whole is not None:
        return f"newest whole tag: {shown(found.newest_whole)}", "good"
    if found.deep is not None and found.deep.stopped:
        return "newest whole tag: not known, the deep check was stopped", "warn"
    return "no tag is whole", "bad"


def _tag(judged: Judged, short: bool, stopped: bool) -> Iterator[Line]:
    facts = summary(judged)
    good = judged.verdict == WHOLE
    warned = sum(1 for one in judged.findings if one.severity == "warning")
    verdict = judged.verdict if good else f"{judged.verdict} ({judged.why})"
    extra = f", {warned} warning{'s' if warned != 1 else ''}" if warned else ""
    extra += " as far as it was read" if good and stopped else ""
    yield f"{shown(judged.tag)}: {verdict}{extra}", "good" if good and not warned else "warn" if good else "bad"
    yield from (("  " + text, "") for text in _facts(facts, short))
    if not short:
        yield from (("  " + text, "") for text in _components(facts))
        yield from _files(judged)
    for one in judged.findings:
        yield from _finding(one)


def _facts(facts: dict[str, Any], short: bool) -> Iterator[str]:
    yield f"written by   DeepSpeed {facts['ds_version'] or 'unknown'}, torch {facts['torch_format'] or 'unknown'}"
    ranks = f"{facts['data_parallel']} data-parallel"
    if facts["model_parallel"] > 1:
        ranks += f" x {facts['model_parallel']} {'pipeline and tensor' if facts['pipeline'] else 'model'}-parallel"
    ranks += " ranks" if facts["data_parallel"] * facts["model_parallel"] > 1 else " rank"
    if facts["experts"]:
        experts = shorten(facts["experts"])
        ranks += f", {experts} experts" + (
            f" over {facts['expert_parallel']} ranks" if facts["expert_parallel"] else ""
        )
    form = ", universal" if facts["universal"] else ", pipeline" if facts["pipeline"] else ""
    yield f"layout       ZeRO stage {_or(facts['stage'])}, {facts['precision'] or 'precision unknown'}, {ranks}{form}"
    steps = shorten(f"{one:g}" for one in facts["optimizer_steps"]) or "?"
    yield (f"progress     step {_or(facts['global_steps'])}, {_or(facts['skipped_steps'])} skipped, "
           f"{_or(facts['global_samples'])} samples; optimizer step {steps}")  # fmt: skip
    if short:
        return
    groups = f"{facts['groups']} group{'s' if facts['groups'] != 1 else ''}" if facts["groups"] else "groups unknown"
    rates = shorten(f"{one:g}" if isinstance(one, int | float) else str(one) for one in facts["lr"])
    yield f"optimizer    {facts['optimizer'] or 'unknown'}, {groups}" + (f", lr {rates}" if rates else "")
    scaler = facts["scaler"]
    scale = f"loss scale {scaler.get('cur_scale', '?')}" if scaler else "no loss scaler"
    yield f"also         {'scheduler' if facts['scheduler'] else 'no scheduler'}, {scale}"
    keys = facts["client_keys"]
    yield f"client state {shorten(map(shown, keys), 8) if keys else 'none'}"


def _components(facts: dict[str, Any]) -> Iterator[str]:
    parameters = facts["parameters"]
    if parameters["trained"]:
        share = f", {parameters['frozen']:,} frozen ({parameters['frozen_share']:.1%})" if parameters["frozen"] else ""
        yield f"parameters   {parameters['trained']:,} trained{share}"
    for name, total in facts["components"].items():
        yield f"{name:<12} {total['elements']:>15,} elements {size(total['bytes']):>10} in {total['tensors']:,} tensors"


def _files(judged: Judged) -> Iterator[Line]:
    listed = report.files(judged)
    there = sum(1 for one in listed if one["size"] is not None and one["expected"])
    wanted = sum(1 for one in listed if one["expected"])
    yield f"  files        {there:,} of {wanted:,} expected, {size(sum(one['size'] or 0 for one in listed))}", ""
    odd = [one for one in listed if one["status"] != "ok"]
    for one in listed if len(listed) <= _FILES_SHOWN else odd[:_FILES_SHOWN]:
        weight = size(one["size"]) if one["size"] is not None else "-"
        status = "ok" if one["status"] == "ok" else one["status"].upper()
        yield f"    {status:<12} {weight:>10}  {shown(one['name'])}", "" if one["status"] == "ok" else "bad"
    if len(listed) > _FILES_SHOWN:
        rest = len(listed) - min(len(odd), _FILES_SHOWN)
        yield f"    and {rest:,} more, {len(listed) - len(odd):,} of all are ok", "dim"


def _finding(one: Finding) -> Iterator[Line]:
    style = _STYLE[one.severity]
    yield f"  {_MARK[one.severity]} [{one.id}] {shown(one.text)}", style
    for label, text in (("expected", one.expected), ("found", one.found), ("do", one.do)):
        if text and one.severity != "info":
            yield f"          {label + ':':<10}{shown(text)}", style if label == "do" else ""


def _resume(found: Inspection) -> Iterator[Line]:
    answer = found.resume
    assert answer is not None
    yield (f"{answer.ranks} ranks at stage {answer.stage} resume {shown(answer.tag)}: {answer.answer} ({answer.why})",
           "good" if answer.answer == "yes" else "warn")  # fmt: skip
    for label, texts in (("run", answer.commands), ("load with", answer.load), ("not restored", answer.losses)):
        for at, text in enumerate(texts):
            yield f"  {label + ':' if at == 0 else '':<14}{text}", ""
    if answer.commands and not answer.converter:
        yield (
            "  DeepSpeed is not installed here: if its converter does not know an option, leave that option out",
            "dim",
        )


def _deep(found: Inspection) -> str:
    deep = found.deep
    assert deep is not None
    speed = f", {size(int(deep.done / deep.seconds))}/s" if deep.seconds > 0.01 else ""
    text = f"deep check: {size(deep.done)} of {size(deep.total)} read, {deep.files_done:,} of {deep.files:,} files entirely"
    return f"{text}{speed}" + (" (stopped)" if deep.stopped else "")


def size(count: int) -> str:
    """Bytes for people: three digits and a unit."""
    amount, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1000 or unit == "PiB":
            break
        amount /= 1024
    return f"{int(amount)} B" if unit == "B" else f"{amount:.3g} {unit}"


def shown(text: object) -> str:
    """Names from a disk, made safe for a terminal: no control characters, no new lines."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in plain
    )


def _or(value: object) -> str:
    return "?" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def plain(found: Sequence[Line]) -> str:
    """Lines without colour."""
    return "\n".join(text for text, _ in found)
