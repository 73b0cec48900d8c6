"""A comparison for people at a terminal: plain lines, each with a style that only colours what the words already say."""

from __future__ import annotations

from collections.abc import Iterator

from dspatch.diff.compare import EQUAL, NOT_COMPARED, Component, Difference, Parameter, by_name
from dspatch.diff.fragments import State
from dspatch.diff.relation import CONVERTED, SAME, UNKNOWN
from dspatch.diff.report import component_as_json, parameter_as_json, tag_as_json
from dspatch.offline.text import Line, shown

#: Parameters and values listed without ``--all``.
_SHOWN = 12


def lines(found: Difference, everything: bool = False) -> Iterator[Line]:
    """The whole result.

    Args:
        found: the comparison.
        everything: list every tensor that differs.
    """
    for label, state in (("A", found.a), ("B", found.b)):
        yield from _side(label, state)
    yield "", ""
    relation = found.relation
    style = "good" if relation.word in (SAME, CONVERTED) else "warn" if relation.word == UNKNOWN else "bad"
    yield shown(relation.answer), "head" if relation.word in ("later", "earlier") and not relation.doubts else style
    for doubt in dict.fromkeys([*relation.doubts, *found.damage]):
        yield f"  but: {shown(doubt)}", "warn"
    yield "", ""
    yield f"  {'component':<15}{'outcome':<14}{'tensors':>8}{'differ':>8}  {'largest':>9}  {'norm B/A':>9}", "head"
    for component in found.components:
        yield _component(component)
    yield from _parameters(found, everything)
    yield from _values(found, everything)


def _side(label: str, state: State) -> Iterator[Line]:
    facts = tag_as_json(state)
    form = "universal" if facts["universal"] else f"ZeRO stage {_or(facts['stage'])}"
    ranks = f"{_or(facts['data_parallel'])} ranks"
    if (facts["model_parallel"] or 1) > 1:
        ranks += f" x {facts['model_parallel']} model-parallel"
    yield f"{label}  {shown(state.judged.tag)} in {shown(facts['folder'])}", "head"
    yield (f"   {facts['verdict']}; {form}, {_or(facts['precision'])}, {ranks}, step {_or(facts['global_steps'])}, "
           f"DeepSpeed {_or(facts['ds_version'])}", "" if facts["verdict"] == "whole" else "bad")  # fmt: skip
    for note in facts["notes"]:
        if "is a tag folder" not in note:  # said by the line above
            yield f"   {shown(note)}", "dim"
    if facts["verdict"] != "whole":
        yield f"   {shown(state.judged.why)}", "bad"


def _component(one: Component) -> Line:
    data = component_as_json(one)
    style = "good" if one.outcome == EQUAL else "warn" if one.outcome == NOT_COMPARED else "bad"
    text = f"  {one.name:<15}{one.outcome:<14}"
    if one.parameters:
        differ = sum(parameter.outcome not in (EQUAL, NOT_COMPARED) for parameter in one.parameters)
        text += f"{data['tensors']:>8,}{differ:>8,}  {_figure(data['largest']):>9}  {_figure(data['norm_ratio'], 6):>9}"
    elif one.values:
        text += f"{len(one.values):>16,} values"
    return (f"{text}  {shown(one.reason)}" if one.reason else text), style


def _parameters(found: Difference, everything: bool) -> Iterator[Line]:
    named = by_name(found)
    rest = [one for one in found.parameters if one.outcome == NOT_COMPARED]
    if named:
        yield "", ""
        yield f"parameters that differ: {len(named):,}", "head"
    listed = list(named.items())
    for name, tensors in listed if everything else listed[:_SHOWN]:
        yield f"  {shown(name)}", ""
        for one in tensors:
            yield f"      {shown(_parameter(one))}", ""
    if len(listed) > _SHOWN and not everything:
        yield f"  and {len(listed) - _SHOWN:,} more (--all lists them)", "dim"
    if rest:
        yield "", ""
        yield f"tensors that were not compared: {len(rest):,}", "head"
        for one in rest if everything else rest[:_SHOWN]:
            yield f"  {one.component} {shown(one.name)}{f' ({shown(one.note)})' if one.note else ''}", "warn"
        if len(rest) > _SHOWN and not everything:
            yield f"  and {len(rest) - _SHOWN:,} more (--all lists them)", "dim"


def _parameter(one: Parameter) -> str:
    data = parameter_as_json(one)
    what = f"{one.component}{f' {one.kind}' if one.kind else ''}: "
    if one.outcome == "renamed":
        return f"{what}the same bytes are called {one.note} in B"
    if one.outcome == "reshaped":
        return f"{what}{data['shape_a']} in A, {data['shape_b']} in B" + (f" ({one.note})" if one.note else "")
    if one.outcome.startswith("only"):
        return f"{what}{one.outcome}, {data['shape_a'] or data['shape_b'] or []} {one.dtypes[0] or one.dtypes[1]}"
    text = f"{what}{data['differing']:,} of {one.elements:,} elements"
    if data["largest"] is not None:
        text += f", largest difference {data['largest']:.4g} at {place(one)}"
    if data["norm_ratio"] is not None:
        text += f", norm B/A {data['norm_ratio']:.6g}"
    if data["not_finite_a"] or data["not_finite_b"]:
        text += f", NaN or infinite: {data['not_finite_a']:,} in A, {data['not_finite_b']:,} in B"
    if one.outcome == "other dtype":
        text += f"; {one.dtypes[0]} in A, {one.dtypes[1]} in B"
    return text


def place(one: Parameter) -> list[int]:
    """The indices of the element that differs most."""
    at = one.apart.at if one.apart is not None else None
    found: list[int] = []
    for length in reversed(one.shapes[0] or ()):
        at, index = divmod(at or 0, max(length, 1))
        found.insert(0, index)
    return found


def _values(found: Difference, everything: bool) -> Iterator[Line]:
    values = [one for component in found.components for one in component.values]
    if values:
        yield "", ""
        yield f"values that differ: {len(values):,}", "head"
    for one in values if everything else values[:_SHOWN]:
        yield f"  {one.component} {shown(one.key)}: {shown(one.a)} in A, {shown(one.b)} in B", ""
    if len(values) > _SHOWN and not everything:
        yield f"  and {len(values) - _SHOWN:,} more (--all lists them)", "dim"


def _figure(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def _or(value: object) -> str:
    return "?" if value is None else str(value)
