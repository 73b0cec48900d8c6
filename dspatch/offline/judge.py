"""The verdict on one tag: its files against its layout, file by file, then against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dspatch.checkpoint import layout as names
from dspatch.errors import shorten
from dspatch.offline import state
from dspatch.offline.agreement import disagreements, is_misnamed
from dspatch.offline.expected import Layout, layout_of
from dspatch.offline.findings import CATALOGUE, ERROR, WHOLE, Finding, worst
from dspatch.offline.record import FileRecord
from dspatch.offline.survey import Survey, TagListing

#: Files named in one finding; ten thousand missing shards are one line each only up to here.
_MOST_ALIKE = 50


@dataclass(slots=True)
class Judged:
    """What is known of one tag.

    Attributes:
        tag: its name.
        verdict: ``whole``, ``damaged``, ``incomplete``, ``export only``.
        why: one sentence; empty for ``whole``.
        layout: how it is laid out.
        records: of its files.
        findings: in the order of their weight.
        status: file name -> ``ok``, ``missing``, or the last part of the id of its first error or warning.
        listing: what lies in its folder.
    """

    tag: str
    verdict: str
    why: str
    layout: Layout
    records: list[FileRecord]
    findings: list[Finding]
    status: dict[str, str] = field(default_factory=dict)
    listing: TagListing | None = None


def judge(listing: TagListing, records: Sequence[FileRecord], survey: Survey, strays: Sequence[FileRecord]) -> Judged:
    """Judge one tag.

    Args:
        listing: what lies in its folder.
        records: of its files.
        survey: of the checkpoint folder.
        strays: records of files in other places that may belong to the tag.
    """
    siblings = [one for other in survey.tags if other.name != listing.name for one in _layer_names(other)]
    laid = layout_of(records, siblings)
    findings: list[Finding] = []
    findings += _damage(records)
    findings += _missing(listing, records, laid, strays, survey)
    findings += _too_many(records, laid)
    findings += disagreements(listing.name, records, laid)
    findings += state.missing_state(listing, records, laid)
    findings += state.faults(listing.name, records, laid)
    findings += state.values(listing.name, records, laid)
    findings += _notes(listing, records)
    findings = _ordered(findings)
    verdict = worst(findings)
    status = _status(records, laid, findings)
    findings = _capped(findings)
    return Judged(
        listing.name, verdict, _why(findings, verdict), laid, list(records), findings,
        status, listing,
    )  # fmt: skip


def _layer_names(listing: TagListing) -> Iterator[FileRecord]:
    for entry in listing.entries:
        role = names.parse(entry.name)
        if role is not None and role.kind == "layer":
            yield FileRecord(listing.name, entry.name, entry.size, kind="layer", layer=role.layer, mp_rank=role.mp_rank)


def _damage(records: Sequence[FileRecord]) -> Iterator[Finding]:
    for one in records:
        if one.damage is not None:
            kind, why = one.damage
            known = f"file.{kind.replace(' ', '-')}"
            do = "take the file from a copy, or resume from another tag"
            yield Finding(
                known if known in CATALOGUE else "file.content", f"{_shown(one.name)} {why}", one.tag, one.name, one.dp_rank,
                expected="the file as it was written", found=why, do=do,
            )  # fmt: skip
        if one.dangerous:
            yield Finding(
                "pickle.dangerous", f"{_shown(one.name)} calls {shorten(map(_shown, one.dangerous))} when it is unpickled",
                one.tag, one.name, one.dp_rank, expected="tensors, numbers and plain containers",
                found=shorten(map(_shown, one.dangerous)), do="do not load it, not even with torch.load; find out who wrote it",
            )  # fmt: skip
        if one.deep is not None and one.deep.get("damage"):
            kind, why = one.deep["damage"]
            known = f"file.{kind.replace(' ', '-')}"
            yield Finding(
                known if known in CATALOGUE else "file.content", f"{_shown(one.name)} {why}", one.tag, one.name, one.dp_rank,
                expected="the bytes that were written", found=why, do="take the file from a copy, or resume from another tag",
            )  # fmt: skip


def _missing(
    listing: TagListing, records: Sequence[FileRecord], laid: Layout, strays: Sequence[FileRecord], survey: Survey
) -> Iterator[Finding]:
    there = {one.name for one in records}
    absent = [name for name in laid.expected if name not in there]
    if state.never_written(records, laid) is not None:
        # No shard was ever written: the fault says so once, instead of a line for each rank.
        absent = [name for name in absent if (role := names.parse(name)) is None or role.kind != "shard"]
    for name in absent:
        role = names.parse(name)
        rank = None if role is None else role.dp_rank
        stray = _fitting(name, listing, records, strays)
        if stray is not None:
            source, target = _path(survey, stray.tag, name), _path(survey, listing.name, name)
            yield Finding(
                "file.elsewhere", f"{name} lies in {_shown(stray.tag)}", listing.name, name, rank,
                expected=f"in the folder of the tag, {_shown(listing.name)}", found=f"in {_shown(stray.tag)}",
                do=f"mv {_quoted(source)} {_quoted(target)}",
            )  # fmt: skip
            continue
        yield Finding(
            "file.missing", f"{name} is not there", listing.name, name, rank,
            expected=f"{len(laid.expected):,} files for {_ranks(laid)}", found=f"{len(laid.expected) - len(absent):,} of them",
            do="copy it from where the rank saved it (node-local disks: every node has its own ranks' files), "
            "or resume from another tag",
        )  # fmt: skip


def _fitting(
    name: str, listing: TagListing, records: Sequence[FileRecord], strays: Sequence[FileRecord]
) -> FileRecord | None:
    """A file of that name in another place which, by what it says, is the one that the tag lacks."""
    role = names.parse(name)
    fitting = []
    for one in strays:
        if one.damage is not None or one.tag == listing.name or one.name != name or is_misnamed(one):
            continue
        like = [other for other in records if other.kind == one.kind and other.damage is None]
        model = [other for other in records if other.kind in ("model", "model_part") and other.damage is None]
        if any(other.ds_version != one.ds_version for other in like if other.ds_version):
            continue
        if one.kind == "shard" and not _is_shard_of(one, like, None if role is None else role.dp_rank):
            continue
        if one.global_steps is not None and any(other.global_steps != one.global_steps for other in model):
            continue
        fitting.append(one)
    # A folder inside the tag, or with its name, is the nearest.
    fitting.sort(key=lambda one: (listing.name not in one.tag, not names.is_temporary(one.tag), one.tag))
    return fitting[0] if fitting else None


def _is_shard_of(one: FileRecord, others: Sequence[FileRecord], rank: int | None) -> bool:
    if one.optimizer is None or (one.fits is not None and rank not in one.fits):
        return False
    steps = set(one.optimizer["steps"])
    for other in others:
        if other.optimizer is None:
            continue
        theirs = set(other.optimizer["steps"])
        if other.partition_count != one.partition_count or (steps and theirs and not steps & theirs):
            return False
    return True


def _too_many(records: Sequence[FileRecord], laid: Layout) -> Iterator[Finding]:
    known = set(laid.expected) | laid.optional
    wanted = {(role.kind, role.dp_rank, role.mp_rank) for role in map(names.parse, laid.expected) if role is not None}
    extra = [one for one in records if one.name not in known]
    stale = []
    for one in extra:
        if one.kind == "shard" and (one.kind, one.dp_rank, one.mp_rank) in wanted:
            yield Finding(
                "file.duplicate", f"{one.name} is a second file for rank {one.dp_rank}", one.tag, one.name, one.dp_rank,
                expected="one shard for each rank", found="two, under the names of different precisions or releases",
                do="DeepSpeed reads one of them and its converters read both: move away the one with the older date",
            )  # fmt: skip
        elif one.kind != "layer":
            stale.append(one)
    for one in stale:
        yield Finding(
            "file.stale", f"{one.name} does not belong to a checkpoint of {_ranks(laid)}", one.tag, one.name, one.dp_rank,
            expected=f"files for {_ranks(laid)}", found="a file beyond that, left by an earlier save into the same tag",
            do="converters take it for a part of this tag: move it away",
        )  # fmt: skip


def _notes(listing: TagListing, records: Sequence[FileRecord]) -> Iterator[Finding]:
    if listing.others:
        text = f"{len(listing.others):,} files that DeepSpeed did not write: {shorten(map(_shown, listing.others))}"
        yield Finding("file.foreign", text, listing.name)
    links = [entry.name for entry in listing.entries if entry.link]
    if links:
        yield Finding("file.link", f"links out of the folder: {shorten(map(_shown, links))}", listing.name,
                      do="copy what they lead to before the tag is moved")  # fmt: skip
    needed = sorted({name for one in records for name in one.unknown})
    if needed:
        yield Finding("pickle.unknown", f"loading needs {shorten(map(_shown, needed))}", listing.name)
    legacy = [one.name for one in records if one.legacy]
    if legacy and any(one.deep is not None for one in records):
        text = f"no checksums in {shorten(legacy)}: torch's older format has none, so changed bytes do not show"
        yield Finding("deep.no-checksum", text, listing.name)


def _ordered(findings: list[Finding]) -> list[Finding]:
    weight = {"error": 0, "warning": 1, "info": 2}
    return sorted(findings, key=lambda one: weight[one.severity])


def _capped(findings: list[Finding]) -> list[Finding]:
    """At most so many of one id, so that ten thousand empty files do not become ten thousand messages."""
    kept: dict[str, list[Finding]] = {}
    for one in findings:
        kept.setdefault(one.id, []).append(one)
    made: list[Finding] = []
    for id, alike in kept.items():
        made += alike[:_MOST_ALIKE]
        if len(alike) > _MOST_ALIKE:
            made.append(Finding(id, f"{len(alike) - _MOST_ALIKE:,} more files like this", alike[0].tag))
    return made


def _why(findings: Sequence[Finding], verdict: str) -> str:
    if verdict == WHOLE:
        return ""
    leading = [one for one in findings if one.severity == ERROR and CATALOGUE[one.id].verdict == verdict]
    rest = sum(1 for one in findings if one.severity == ERROR) - 1
    return leading[0].text + (f" (and {rest:,} more)" if rest else "")


def _status(records: Sequence[FileRecord], laid: Layout, findings: Sequence[Finding]) -> dict[str, str]:
    status = {one.name: "ok" for one in records}
    status.update((name, "missing") for name in laid.expected if name not in status)
    said: set[str] = set()
    for one in findings:
        if one.file and one.severity != "info" and one.file not in said:
            said.add(one.file)
            status[one.file] = one.id.split(".", 1)[1]
    return status


def _ranks(laid: Layout) -> str:
    text = f"{laid.dp:,} data-parallel rank{'s' if laid.dp != 1 else ''}"
    return text if laid.mp == 1 else f"{text} times {laid.mp} model-parallel ones"


def _path(survey: Survey, folder: str, name: str) -> str:
    return "/".join(part for part in (survey.folder, "" if folder == "." else folder, name) if part)


def _quoted(path: str) -> str:
    import shlex

    return shlex.quote(path)


def _shown(text: Any) -> str:
    text = str(text)
    return text if text.isprintable() else repr(text)


def count_kinds(records: Sequence[FileRecord]) -> dict[str, int]:
    """Number of files of each kind."""
    return dict(sorted(Counter(one.kind or "other" for one in records).items()))
