"""The rules of compat_matrix.yaml. Each rule is one function that yields what is wrong; all faults are told at once."""

from __future__ import annotations

import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from dspatch.errors import MatrixError, explain
from dspatch.patching.body import DIGITS
from dspatch.patching.matrix import Fault, Matrix, Row, Upstream
from dspatch.patching.ranges import Range, parse_version

#: The only schema there is so far; a matrix of another one is refused rather than half understood.
SCHEMA = 1

PATCHES = "dspatch.patches"
DOES = ("observes", "prevents", "repairs")
UNKNOWN = ("apply", "skip")
#: What dspatch does about a fault of the catalogue, see ``Fault``; the first ones are claims that a test has to show.
SHOWN = ("prevented", "repaired", "caught", "told", "found")
ABOUT = (*SHOWN, "loud", "not run", "not shown", "not yet")

_TOP_FIELDS = ("schema", "trees", "rows", "faults")
_FAULT_TEXTS = ("id", "title", "does")
_FAULT_LISTS = ("deepspeed", "shown", "ran")
_FAULT_REQUIRED = (*_FAULT_TEXTS, "deepspeed")
_TEXTS = ("id", "site", "module", "wrapper", "deepspeed", "does", "why")
_LISTS = ("tested", "bodies", "scenarios")
_REQUIRED = (*_TEXTS, *_LISTS)
_OPTIONAL_TEXTS = ("unknown", "body_of")
_OPTIONAL_LISTS = ("needs", "faults", "beside")
_KNOWN = (*_REQUIRED, *_OPTIONAL_TEXTS, *_OPTIONAL_LISTS, "upstream")
_UPSTREAM_FIELDS = tuple(item.name for item in fields(Upstream))

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_SITE = re.compile(r"deepspeed(\.\w+)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_BODY = re.compile(rf"[0-9a-f]{{{DIGITS}}}")
_FAULT_ID = re.compile(r"[A-Z][1-9]\d?")

_RowRule = Callable[[Row], Iterator[str]]
_FaultRule = Callable[[Fault], Iterator[str]]
_MatrixRule = Callable[[Matrix], Iterator[str]]


def build(data: Any, source: str) -> Matrix:
    """Turn parsed YAML into a ``Matrix``.

    Args:
        data: what the YAML loader returned.
        source: name of the file, for the message.

    Raises:
        MatrixError: a rule is broken; the message lists every fault found.
    """
    wrong = list(_top_level(data))
    rows: list[Row] = []
    catalogue: list[Fault] = []
    if not wrong:
        for position, raw in enumerate(data["rows"]):
            faults, row = _row(raw)
            wrong += [f"row {_label(raw, position)}: {fault}" for fault in faults]
            rows += [row] if row is not None else []
        for position, raw in enumerate(data["faults"]):
            faults, entry = _fault(raw)
            wrong += [f"fault {_label(raw, position)}: {fault}" for fault in faults]
            catalogue += [entry] if entry is not None else []
    if not wrong:
        matrix = Matrix(tuple(rows), dict(data["trees"]), tuple(catalogue))
        wrong = [fault for rule in _MATRIX_RULES for fault in rule(matrix)]
    if wrong:
        headline = f"{source} breaks {len(wrong)} rule(s) of its schema"
        raise MatrixError(explain(headline, found="; ".join(wrong), do="correct the file"))
    return matrix


def _label(raw: Any, position: int) -> str:
    return str(raw.get("id", position)) if isinstance(raw, dict) else str(position)


# --- shape: fields and their types ------------------------------------------------------------------------------------


def _top_level(data: Any) -> Iterator[str]:
    if not isinstance(data, dict):
        yield "the file is no mapping"
        return
    yield from _field_names(data, required=_TOP_FIELDS, known=_TOP_FIELDS)
    if data.get("schema") != SCHEMA:
        yield f"schema is {data.get('schema')!r}, this dspatch reads {SCHEMA}"
    if not isinstance(data.get("rows"), list) or not data["rows"]:
        yield "rows is no list, or empty"
    if not isinstance(data.get("faults"), list):
        yield "faults is no list"
    trees = data.get("trees")
    if not isinstance(trees, dict) or not all(isinstance(item, str) for pair in trees.items() for item in pair):
        yield "trees is no mapping of role to version (quote the versions)"
    elif trees:
        for role, version in trees.items():
            yield from _version_faults(version, f"trees: {role}")


def _row(raw: Any) -> tuple[list[str], Row | None]:
    """What is wrong with one row by itself, and the row if nothing is."""
    if not isinstance(raw, dict):
        return ["is no mapping"], None
    faults = [*_field_names(raw, _REQUIRED, _KNOWN), *_types(raw)]
    if faults:
        return faults, None
    try:
        releases = Range.parse(raw["deepspeed"])
    except MatrixError as error:
        return [f"deepspeed: {error}"], None
    values: dict[str, Any] = {name: raw[name] for name in _TEXTS}
    values |= {name: tuple(raw.get(name, ())) for name in (*_LISTS, *_OPTIONAL_LISTS)}
    values |= {
        "deepspeed": releases,
        "unknown": raw.get("unknown", "apply" if raw["does"] == "observes" else "skip"),
        "body_of": raw.get("body_of", ""),
        "upstream": Upstream(**raw.get("upstream", {})),
    }
    row = Row(**values)
    return [fault for rule in _ROW_RULES for fault in rule(row)], row


def _fault(raw: Any) -> tuple[list[str], Fault | None]:
    """What is wrong with one fault of the catalogue by itself, and the fault if nothing is."""
    if not isinstance(raw, dict):
        return ["is no mapping"], None
    wrong = [*_field_names(raw, _FAULT_REQUIRED, (*_FAULT_REQUIRED, "shown", "ran", "note"))]
    wrong += [*_text_types(raw, (*_FAULT_TEXTS, "note")), *_list_types(raw, _FAULT_LISTS, _FAULT_LISTS[:1])]
    if wrong:
        return wrong, None
    try:
        releases = tuple(Range.parse(text) for text in raw["deepspeed"])
    except MatrixError as error:
        return [f"deepspeed: {error}"], None
    listed = {name: tuple(raw.get(name, ())) for name in ("shown", "ran")}
    fault = Fault(**{**raw, **listed, "deepspeed": releases})
    return [found for rule in _FAULT_RULES for found in rule(fault)], fault


def _field_names(raw: dict[Any, Any], required: tuple[str, ...], known: tuple[str, ...]) -> Iterator[str]:
    for name in required:
        if name not in raw:
            yield f"the field {name} is absent"
    for name in raw:
        if name not in known:
            yield f"unknown field {name!r} (known: {', '.join(known)})"


def _types(raw: dict[Any, Any]) -> Iterator[str]:
    yield from _text_types(raw, (*_TEXTS, *_OPTIONAL_TEXTS))
    yield from _list_types(raw, (*_LISTS, *_OPTIONAL_LISTS), _LISTS)
    upstream = raw.get("upstream", {})
    if not isinstance(upstream, dict) or not all(isinstance(value, str) for value in upstream.values()):
        yield "upstream is no mapping of texts"
    else:
        yield from (f"upstream: {fault}" for fault in _field_names(upstream, (), _UPSTREAM_FIELDS))


def _text_types(raw: dict[Any, Any], names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if name in raw and not (isinstance(raw[name], str) and raw[name].strip()):
            yield f"{name} is no text, or empty"


def _list_types(raw: dict[Any, Any], names: tuple[str, ...], not_empty: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        value = raw.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
            yield f"{name} is no list of texts (quote versions and bodies)"
        elif name in not_empty and not value:
            yield f"{name} is empty"
        elif len(set(value)) != len(value):
            yield f"{name} lists something twice"


# --- one row ----------------------------------------------------------------------------------------------------------


def _words(row: Row) -> Iterator[str]:
    if not _ID.fullmatch(row.id):
        yield "the id is not of the form lower-case-words"
    if row.does not in DOES:
        yield f"does is {row.does!r}, not one of {', '.join(DOES)}"
    if row.unknown not in UNKNOWN:
        yield f"unknown is {row.unknown!r}, not one of {', '.join(UNKNOWN)}"
    if "\n" in row.why.strip():
        yield "why is more than one line"
    for name in row.needs:
        if not _NAME.fullmatch(name):
            yield f"needs: {name!r} is no parameter name"


def _sites(row: Row) -> Iterator[str]:
    for label, site in (("site", row.site), ("body_of", row.body_of)):
        if site and not _SITE.fullmatch(site):
            yield f"{label} {site!r} is not of the form deepspeed.module:Qual.name"
    # Both have to be there when the hook of the site's module runs.
    if row.body_of and row.body_of.partition(":")[0] != row.defining_module:
        yield "body_of is in another module than the site"


def _versions(row: Row) -> Iterator[str]:
    for version in row.tested:
        faults = list(_version_faults(version, "tested"))
        yield from faults
        if not faults and parse_version(version) not in row.deepspeed:
            yield f"tested {version} is outside {row.deepspeed.text}"
    for label in ("introduced", "fixed_in"):
        version = getattr(row.upstream, label)
        if version:
            yield from _version_faults(version, f"upstream {label}")


def _body_form(row: Row) -> Iterator[str]:
    for body in row.bodies:
        if not _BODY.fullmatch(body):
            yield f"body {body!r} is not {DIGITS} hexadecimal digits"


def _patch_exists(row: Row) -> Iterator[str]:
    package, _, name = row.module.rpartition(".")
    files = _patch_files()
    if package != PATCHES or name not in files:
        yield f"unknown module {row.module} (there are: {', '.join(sorted(files)) or 'none'} in {PATCHES})"
    # Read, not imported: a patch file may import torch, and the matrix is read where there is none.
    elif not re.search(rf"^def {re.escape(row.wrapper)}\(", files[name].read_text(encoding="utf-8"), re.MULTILINE):
        yield f"unknown wrapper {row.wrapper} in {row.module}"


def _version_faults(version: str, label: str) -> Iterator[str]:
    try:
        parse_version(version)
    except MatrixError as error:
        yield f"{label}: {error}"


def _patch_files() -> dict[str, Path]:
    spec = find_spec(PATCHES)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    return {info.name: Path(folder, f"{info.name}.py") for folder in folders for info in pkgutil.iter_modules([folder])}


# --- one fault of the catalogue ---------------------------------------------------------------------------------------


def _fault_words(fault: Fault) -> Iterator[str]:
    if not _FAULT_ID.fullmatch(fault.id):
        yield "the id is not a letter and a number"
    if fault.does not in ABOUT:
        yield f"does is {fault.does!r}, not one of {', '.join(ABOUT)}"
    for name in ("title", "note"):
        if "\n" in getattr(fault, name).strip():
            yield f"{name} is more than one line"


def _fault_ranges(fault: Fault) -> Iterator[str]:
    for earlier, later in pairwise(fault.deepspeed):
        if earlier.first > later.first or earlier.overlaps(later):
            yield f"the ranges {earlier.text} and {later.text} overlap, or are not in order"


def _fault_versions(fault: Fault) -> Iterator[str]:
    for version in fault.ran:
        yield from _version_faults(version, "ran")


def _fault_is_shown(fault: Fault) -> Iterator[str]:
    if fault.does in SHOWN and not fault.shown:
        yield f"does is {fault.does!r}, and shown names no test"
    if fault.does.startswith("not ") and fault.shown:
        yield f"does is {fault.does!r}, and shown names a test"
    if fault.does == "not run" and not fault.note:
        yield "does is 'not run', and no note says why"


# --- between rows -----------------------------------------------------------------------------------------------------


def _unique_ids(matrix: Matrix) -> Iterator[str]:
    yield from (f"the id {name} is given to {count} rows" for name, count in Counter(matrix.ids()).items() if count > 1)


def _no_gap_no_overlap(matrix: Matrix) -> Iterator[str]:
    for chain in matrix.chains():
        for earlier, later in pairwise(chain):
            ranges = f"{earlier.id} ({earlier.deepspeed.text}) and {later.id} ({later.deepspeed.text})"
            if earlier.deepspeed.overlaps(later.deepspeed):
                yield f"the ranges of {ranges} overlap on {earlier.site}"
            elif not earlier.deepspeed.meets(later.deepspeed):
                yield f"the ranges of {ranges} leave a gap on {earlier.site}"


def _beside_is_there(matrix: Matrix) -> Iterator[str]:
    sites = {row.id: row.site for row in matrix.rows}
    for row in matrix.rows:
        for other in row.beside:
            if other == row.id or sites.get(other) != row.site:
                yield f"row {row.id}: beside names {other}, which is no other row on {row.site}"


def _unique_faults(matrix: Matrix) -> Iterator[str]:
    counted = Counter(fault.id for fault in matrix.faults)
    yield from (f"the id {name} is given to {count} faults" for name, count in counted.items() if count > 1)


def _faults_are_in_the_catalogue(matrix: Matrix) -> Iterator[str]:
    known = {fault.id for fault in matrix.faults}
    for row in matrix.rows:
        yield from (
            f"row {row.id}: the fault {name} is not in the catalogue" for name in row.faults if name not in known
        )


def _every_patch_has_a_row(matrix: Matrix) -> Iterator[str]:
    used = {row.module.rpartition(".")[2] for row in matrix.rows}
    for name in sorted(set(_patch_files()) - used):
        yield f"{PATCHES}.{name} has no row"


_ROW_RULES: tuple[_RowRule, ...] = (_words, _sites, _versions, _body_form, _patch_exists)
_FAULT_RULES: tuple[_FaultRule, ...] = (_fault_words, _fault_ranges, _fault_versions, _fault_is_shown)
_MATRIX_RULES: tuple[_MatrixRule, ...] = (
    _unique_ids,
    _no_gap_no_overlap,
    _beside_is_there,
    _unique_faults,
    _faults_are_in_the_catalogue,
    _every_patch_has_a_row,
)
