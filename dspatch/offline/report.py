"""The JSON of ``dspatch inspect --json``: its schema, and building it.

``schema`` is 1. Fields and ids stay as long as it does; new ones may come, so readers must skip what they do not know.
Sizes are bytes, counts are elements unless they say otherwise. Where no file tells a value it is null.

Top level::

    schema         1
    dspatch        version of dspatch that wrote this
    folder         the checkpoint folder
    notes          texts: what was assumed on the way to the folder
    verdict        "whole", "damaged", "incomplete", "export only" or "not a DeepSpeed checkpoint": that of the tag, the worst
                   of several, or what a folder without tags is
    exit           the exit code: 0 fine, 1 a problem was found
    newest_whole   the newest tag that is whole, or null
    looked_at      tag -> verdict, of all tags that were judged, newest first
    latest, latest_universal
                   null without the file, else {text, tag, problem}: content, tag as DeepSpeed reads it, what is wrong
    findings       about the folder, each as below
    tags           one object for each tag that was asked for
    resume         null, or the answer to --for-ranks and --for-stage: {tag, ranks, stage, answer, why, commands, load, losses,
                   converter}; answer is "yes", "after conversion", "weights only" or "no"
    deep           null, or {done, total, files_done, files, seconds, stopped}: how far the deep check came

A tag::

    tag, verdict   its name; "whole", "damaged", "incomplete" or "export only"
    why            one sentence, empty for a whole tag
    facts          {ds_version, torch_format, stage, precision, data_parallel, model_parallel, pipeline, universal, experts,
                   expert_parallel, global_steps, global_samples, skipped_steps, optimizer, optimizer_steps, groups, lr,
                   weight_decay, scheduler, scaler, client_keys, parameters: {trained, frozen, frozen_share}, components:
                   {name: {tensors, elements, bytes}}, bytes, files_expected, files_found}
    findings       each {id, severity, text, tag, file, rank, expected, found, do, fault}; severity is "error", "warning" or
                   "info", rank a data-parallel rank or null, fault an id of the fault catalogue or ""
    files          each {name, kind, rank, size, status, expected}; status is "ok", "missing" or the last part of the id of
                   its first finding; size is null for a missing one
    other_files    names of files that DeepSpeed did not write
    moments        null, or (deep) exponent of 2 -> number of elements of a sample with that magnitude

What ``--part`` writes is for ``--merge`` only and has no stable schema.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from dspatch.checkpoint import layout
from dspatch.offline.inspection import Inspection
from dspatch.offline.judge import Judged
from dspatch.offline.summary import summary

SCHEMA = 1


def as_json(found: Inspection, version: str) -> dict[str, Any]:
    """An inspection as plain data, in the schema above.

    Args:
        found: the inspection.
        version: of dspatch.
    """
    survey = found.survey
    return {
        "schema": SCHEMA, "dspatch": version, "folder": survey.folder, "notes": survey.notes, "verdict": found.verdict,
        "exit": 1 if found.problem else 0, "newest_whole": found.newest_whole, "looked_at": found.looked_at,
        "latest": survey.latest, "latest_universal": survey.latest_universal,
        "findings": [one.as_json() for one in found.findings], "tags": [tag_as_json(one) for one in found.tags],
        "resume": found.resume.as_json() if found.resume is not None else None,
        "deep": asdict(found.deep) if found.deep is not None else None,
    }  # fmt: skip


def tag_as_json(judged: Judged) -> dict[str, Any]:
    """One tag as plain data, in the schema above."""
    return {
        "tag": judged.tag, "verdict": judged.verdict, "why": judged.why, "facts": summary(judged),
        "findings": [one.as_json() for one in judged.findings], "files": files(judged),
        "other_files": judged.listing.others if judged.listing is not None else [], "moments": magnitudes(judged),
    }  # fmt: skip


def files(judged: Judged) -> list[dict[str, Any]]:
    """Every file that is there or should be: the expected ones in their order, then the others."""
    known = {one.name: one for one in judged.records}
    expected = set(judged.layout.expected)
    ordered = [*judged.layout.expected, *(one.name for one in judged.records if one.name not in expected)]
    made = []
    for name in ordered:
        one = known.get(name)
        role = layout.parse(name)
        made.append({
            "name": name, "kind": one.kind if one is not None else role.kind if role is not None else "universal",
            "rank": one.dp_rank if one is not None else role.dp_rank if role is not None else None,
            "size": one.size if one is not None else None, "status": judged.status[name],
            "expected": name in expected or name in judged.layout.optional,
        })  # fmt: skip
    return made


def magnitudes(judged: Judged) -> dict[str, int] | None:
    """Magnitudes of a sample of all moments, as exponents of 2, smallest first; None without a deep check."""
    counted: Counter[int] = Counter()
    for one in judged.records:
        counted.update({int(key): number for key, number in (one.deep or {}).get("magnitudes", {}).items()})
    return {str(key): counted[key] for key in sorted(counted)} if counted else None
