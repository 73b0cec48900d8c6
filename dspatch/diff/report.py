"""The JSON of ``dspatch diff --json``: its schema, and building it.

``schema`` is 1. Fields stay as long as it does; new ones may come, so readers must skip what they do not know. Where a
number is not known, or is NaN or infinite, it is null.

Top level::

    schema         1
    dspatch        version of dspatch that wrote this
    a, b           the two tags, each as below
    relation       "same" (bit for bit, in the same layout), "converted" (bit for bit, in another stage, number of ranks or
                   form), "later" (B is what A became), "earlier" (the other way round), "changed" (same names and shapes, not
                   later: other values), "other run" (values unrelated), "other model" (other names or shapes), "unknown"
                   (what both should hold could not be compared)
    answer         the same in a sentence
    doubts         texts: what speaks against the answer
    exit           the exit code: 0 equal, 1 differs, 3 could not look
    steps          engine steps from A to B, or null
    correlation    of trained matrices, around their means; 1 for equal ones; null without
    damage         texts: what is wrong with files of A or B: unreadable, not there, of another rank, bytes that do not fit
                   their checksums
    components     component -> {outcome, reason, tensors, equal, elements, differing, largest, norm_ratio}; outcome is
                   "equal", "differs", "only in A", "only in B" or "not compared"; differing counts elements
    parameters     tensors that are not equal, each {component, state, name, outcome, shape_a, shape_b, dtype_a, dtype_b,
                   elements, differing, first, largest, at, norm_a, norm_b, norm_ratio, not_finite_a, not_finite_b, note};
                   outcome is "differs", "renamed" (note: the name in B), "reshaped", "other dtype", "only in A", "only in B"
                   or "not compared" (note: why); state is the name of a moment (exp_avg), else ""; first and at are positions
                   of elements in the flattened tensor: the first that differs, the one that differs most; norm_ratio is B/A
    values         numbers and texts that differ, each {component, key, a, b}; null on the side that has none

A tag::

    folder, tag    as found; notes: what was assumed on the way there
    verdict        as `dspatch inspect` gives it; findings: ids of its errors and warnings
    ds_version, stage, precision, data_parallel, model_parallel, universal, global_steps, optimizer_steps
"""

from __future__ import annotations

import math
from typing import Any

from dspatch.diff.compare import EQUAL, Component, Difference, Parameter
from dspatch.diff.fragments import State
from dspatch.offline.summary import summary

SCHEMA = 1


def as_json(found: Difference, version: str) -> dict[str, Any]:
    """A comparison as plain data, in the schema above.

    Args:
        found: the comparison.
        version: of dspatch.
    """
    relation = found.relation
    return {
        "schema": SCHEMA, "dspatch": version, "a": tag_as_json(found.a), "b": tag_as_json(found.b),
        "relation": relation.word, "answer": relation.answer, "doubts": relation.doubts, "exit": relation.exit_code,
        "steps": relation.steps, "correlation": number(relation.correlation), "damage": found.damage,
        "components": {one.name: component_as_json(one) for one in found.components},
        "parameters": [parameter_as_json(one) for one in found.parameters],
        "values": [
            {"component": one.component, "key": one.key, "a": plain(one.a), "b": plain(one.b)}
            for component in found.components for one in component.values
        ],
    }  # fmt: skip


def tag_as_json(state: State) -> dict[str, Any]:
    """One side, in the schema above."""
    facts = summary(state.judged)
    names = ("ds_version", "stage", "precision", "data_parallel", "model_parallel", "universal", "global_steps")
    return {
        "folder": state.survey.folder, "tag": state.judged.tag, "notes": state.survey.notes,
        "verdict": state.judged.verdict,
        "findings": sorted({one.id for one in state.judged.findings if one.severity != "info"}),
        **{name: facts[name] for name in names}, "optimizer_steps": state.steps,
    }  # fmt: skip


def component_as_json(one: Component) -> dict[str, Any]:
    """One component, in the schema above."""
    measured = [parameter.apart for parameter in one.parameters if parameter.apart is not None]
    return {
        "outcome": one.outcome, "reason": one.reason, "tensors": len(one.parameters),
        "equal": sum(parameter.outcome == EQUAL for parameter in one.parameters),
        "elements": sum(parameter.elements for parameter in one.parameters),
        "differing": sum(apart.differing for apart in measured),
        "largest": number(max((apart.largest for apart in measured if apart.largest is not None), default=None)),
        "norm_ratio": norm_ratio(one),
    }  # fmt: skip


def norm_ratio(one: Component) -> float | None:
    """Norm of B over norm of A, over the tensors that differ; 1 when none does, None when nothing was measured."""
    if one.outcome == EQUAL:
        return 1.0 if one.parameters else None
    sums = [
        parameter.apart.sums for parameter in one.parameters if parameter.apart is not None and parameter.apart.finite
    ]
    a, b = sum(one[2] for one in sums), sum(one[3] for one in sums)
    return number(math.sqrt(b / a)) if a > 0 else None


def parameter_as_json(one: Parameter) -> dict[str, Any]:
    """One tensor, in the schema above."""
    apart = one.apart
    a, b = apart.norms if apart is not None and apart.finite else (None, None)
    return {
        "component": one.component, "state": one.kind, "name": one.name, "outcome": one.outcome,
        "shape_a": _shape(one.shapes[0]), "shape_b": _shape(one.shapes[1]), "dtype_a": one.dtypes[0], "dtype_b": one.dtypes[1],
        "elements": one.elements, "differing": apart.differing if apart is not None else None,
        "first": apart.first if apart is not None else None,
        "largest": number(apart.largest) if apart is not None else None, "at": apart.at if apart is not None else None,
        "norm_a": number(a), "norm_b": number(b), "norm_ratio": number(b / a) if a and b is not None else None,
        "not_finite_a": apart.not_finite[0] if apart is not None else None,
        "not_finite_b": apart.not_finite[1] if apart is not None else None, "note": one.note,
    }  # fmt: skip


def _shape(shape: tuple[int, ...] | None) -> list[int] | None:
    return None if shape is None else list(shape)


def number(value: float | None) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if value is not None and math.isfinite(value) else None


def plain(value: Any) -> Any:
    """A number or text that JSON can hold."""
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
