"""One inspection from folder to result: choose tags, read, judge, and find the newest whole tag."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dspatch.offline import parts, reading, resume
from dspatch.offline.deep import Check, Covered
from dspatch.offline.findings import EXPORT_ONLY, NOT_DEEPSPEED, WHOLE, Finding, is_problem
from dspatch.offline.judge import Judged, judge
from dspatch.offline.record import FileRecord
from dspatch.offline.survey import Survey, look

Progress = Callable[[int, int], object]


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for.

    Attributes:
        folder: the checkpoint folder, a tag folder, or one level off.
        tag: the tag; None: the one in ``latest``, else the newest.
        all: every tag.
        deep: also read every byte.
        ranks, stage: the job of ``--for-ranks`` and ``--for-stage``; None: not asked.
        threads: of the deep check; None: as many as cores.
    """

    folder: str
    tag: str | None = None
    all: bool = False
    deep: bool = False
    ranks: int | None = None
    stage: int | None = None
    threads: int | None = None


@dataclass(slots=True)
class Inspection:
    """The result.

    Attributes:
        survey: what lies in the folder.
        verdict: of the folder: that of the only tag, the worst of several, or what a folder without tags is.
        tags: the tags that were asked for.
        findings: about the folder, not about one tag.
        newest_whole: the newest tag that is whole; None when there is none.
        looked_at: all tags that were judged on the way, with their verdicts, newest first.
        resume: the answer to ``--for-ranks``; None when not asked.
        deep: how far the deep check came; None without one.
    """

    survey: Survey
    verdict: str = ""
    tags: list[Judged] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    newest_whole: str | None = None
    looked_at: dict[str, str] = field(default_factory=dict)
    resume: resume.Answer | None = None
    deep: Covered | None = None

    @property
    def problem(self) -> bool:
        """Whether there is anything to say that an exit code should tell."""
        findings = [*self.findings, *(one for judged in self.tags for one in judged.findings)]
        return is_problem(findings) or (self.resume is not None and self.resume.answer != resume.YES)


def inspect(
    wish: Wish, progress: Progress | None = None, checking: Progress | None = None, check: Check | None = None
) -> Inspection:
    """Inspect a checkpoint folder.

    Args:
        wish: what is asked for.
        progress: of the inventory, in files.
        checking: of the deep check, in bytes.
        check: to use, for who wants to stop it; one is made by default.

    Raises:
        CannotLook: the folder is not there or may not be read.
        NoSuchJob: ``ranks`` or ``stage`` cannot be.
    """
    survey = look(wish.folder, wish.tag)
    chosen = choose(survey, wish)
    items = reading.plan(survey, chosen)
    records = reading.read_all(survey, items, progress)
    covered = check_deep(survey, items, records, check or Check(wish.threads, checking)) if wish.deep else None
    return conclude(survey, wish, chosen, items, records, covered, threads=wish.threads)


def choose(survey: Survey, wish: Wish) -> list[str]:
    """The tags that are asked for: all, the one named, the one in ``latest``, or the newest."""
    if wish.all:
        return [one.name for one in survey.tags]
    asked = wish.tag if wish.tag is not None else survey.asked_tag
    if asked is not None:
        return [asked.strip("/")]
    for latest in (survey.latest, survey.latest_universal):
        if latest is not None and latest["problem"] is None and latest["tag"] and survey.tag(latest["tag"]) is not None:
            return [latest["tag"]]
    return [survey.tags[0].name] if survey.tags else []


def check_deep(survey: Survey, items: Sequence[reading.Item], records: Sequence[FileRecord], check: Check) -> Covered:
    """Read every byte of the tags' files; what is found goes into the records."""
    pairs = zip(items, records, strict=True)
    return check.run([(record, reading.folder_of(survey, item.tag)) for item, record in pairs if not item.stray])


def conclude(
    survey: Survey, wish: Wish, chosen: Sequence[str], items: Sequence[reading.Item], records: Sequence[FileRecord],
    covered: Covered | None, look_further: bool = True, threads: int | None = None,
) -> Inspection:  # fmt: skip
    """Judge what was read.

    Args:
        survey, chosen, items, records: of the same inspection; ``records`` in the order of ``items``.
        wish: what is asked for.
        covered: how far the deep check came.
        look_further: read other tags to find the newest whole one, as deeply as those that were asked for.
        threads: for that.
    """
    made = Inspection(survey, deep=covered)
    by_tag: dict[str, list[FileRecord]] = {}
    strays: list[FileRecord] = []
    for item, record in zip(items, records, strict=True):
        (strays if item.stray else by_tag.setdefault(item.tag, [])).append(record)
    for name in chosen:
        listing = survey.tag(name)
        if listing is not None:
            made.tags.append(judge(listing, by_tag.get(name, []), survey, [*strays, *_others(by_tag, name)]))
    made.looked_at = {one.tag: one.verdict for one in made.tags}
    _find_newest(made, strays, look_further, threads)
    made.findings = list(_about_folder(made, wish, chosen))
    made.verdict = _verdict(made)
    if wish.ranks is not None and wish.stage is not None and made.tags:
        made.resume = resume.answer(made.tags[0], survey, wish.ranks, wish.stage)
    if covered is not None and covered.stopped:
        text = f"the deep check was stopped after {covered.files_done:,} of {covered.files:,} files"
        made.findings.append(Finding("deep.not-covered", text, expected=f"{covered.total:,} bytes",
                                     found=f"{covered.done:,} bytes", do="run it again, perhaps with --part"))  # fmt: skip
    return made


def _others(by_tag: dict[str, list[FileRecord]], name: str) -> list[FileRecord]:
    """With several tags chosen, a part of one of them may be what another lacks."""
    return [one for tag, records in by_tag.items() if tag != name and len(records) < 64 for one in records]


def _find_newest(made: Inspection, strays: Sequence[FileRecord], look_further: bool, threads: int | None) -> None:
    survey, covered = made.survey, made.deep
    judged = {one.tag: one for one in made.tags}
    for listing in survey.tags:
        name = listing.name
        if name not in judged:
            if not look_further or (covered is not None and covered.stopped):
                continue
            items = [item for item in reading.plan(survey, [name]) if not item.stray]
            records = reading.read_all(survey, items)
            if covered is not None and check_deep(survey, items, records, Check(threads)).stopped:
                covered.stopped = True
            judged[name] = judge(listing, records, survey, strays)
            made.looked_at[name] = judged[name].verdict
        if judged[name].verdict == WHOLE and (covered is None or not covered.stopped or _entirely(judged[name])):
            made.newest_whole = name
            return


def _entirely(judged: Judged) -> bool:
    """Whether a deep check came to the end of every file of a tag."""
    return all(one.deep is not None and one.deep["complete"] for one in judged.records)


def _about_folder(made: Inspection, wish: Wish, chosen: Sequence[str]) -> list[Finding]:
    survey, found = made.survey, []
    asked = wish.tag if wish.tag is not None else survey.asked_tag
    if asked is not None and not made.tags:
        listed = ", ".join(one.name for one in survey.tags[:5]) or "none"
        found.append(Finding("tag.absent", f"there is no tag {asked!r}", expected=f"a folder {asked!r} with checkpoint files",
                             found=f"tags, newest first: {listed}", do="pass one of these with --tag"))  # fmt: skip
    if not survey.tags:
        if asked is None:
            like = survey.looks_like or "no file in it has a name that DeepSpeed gives"
            id = "folder.export" if survey.export else "folder.no-tag"
            found.append(Finding(id, f"the folder holds no DeepSpeed checkpoint: it is {like}" if survey.looks_like else
                                 f"the folder holds no DeepSpeed checkpoint: {like}",
                                 do="pass the folder that save_checkpoint was given"))  # fmt: skip
        return found
    if asked is None:
        found += _about_latest(made, chosen)
    return found


def _about_latest(made: Inspection, chosen: Sequence[str]) -> list[Finding]:
    survey, found = made.survey, []
    for name, latest in (("latest", survey.latest), ("latest_universal", survey.latest_universal)):
        if latest is None:
            continue
        tag, way_out = latest["tag"], _name_another(made, name)
        if latest["problem"] is not None:
            found.append(Finding("latest.wrong", f"`{name}` {_shown(latest['problem'])}", file=name,
                                 expected="the name of a tag", found=_shown(latest["problem"]), do=way_out))  # fmt: skip
        elif tag is not None and survey.tag(tag) is None:
            found.append(Finding("latest.wrong", f"`{name}` names {_shown(tag)}, which holds no checkpoint files", file=name,
                                 expected="the name of a tag", found="a folder without checkpoint files",
                                 do=way_out))  # fmt: skip
        elif tag is not None and (verdict := made.looked_at.get(tag)) not in (None, WHOLE):
            found.append(Finding("latest.not-whole", f"`{name}` names {_shown(tag)}, which is {verdict}", file=name,
                                 expected="a tag that is whole", found=verdict or "", do=way_out))  # fmt: skip
        elif (
            name == "latest" and made.newest_whole is not None and tag != made.newest_whole and not _is_universal(made)
        ):
            found.append(Finding("latest.behind", f"`latest` names {_shown(tag)}, and {made.newest_whole} is newer and whole",
                                 file=name))  # fmt: skip
    if survey.latest is None and survey.latest_universal is None:
        found.append(Finding("latest.absent", "there is no `latest`: a load without a tag finds nothing",
                             expected="a file `latest` with the name of a tag", found="none",
                             do=_name_another(made, "latest")))  # fmt: skip
    return found


def _name_another(made: Inspection, name: str) -> str:
    if made.newest_whole is None:
        return "no tag is whole: look for a copy of the checkpoint"
    return f"printf %s {shlex.quote(made.newest_whole)} > {shlex.quote(f'{made.survey.folder}/{name}')}"


def _is_universal(made: Inspection) -> bool:
    listing = made.survey.tag(made.newest_whole or "")
    return listing is not None and listing.kind == "universal"


def _verdict(made: Inspection) -> str:
    if made.tags:
        order = ("damaged", "incomplete", NOT_DEEPSPEED, EXPORT_ONLY, WHOLE)
        return min((one.verdict for one in made.tags), key=order.index)
    if made.survey.export:
        return EXPORT_ONLY
    return NOT_DEEPSPEED if not made.survey.tags else "incomplete"


def _shown(text: object) -> str:
    shown = str(text)
    return shown if shown.isprintable() else repr(shown)


# --- parts ------------------------------------------------------------------------------------------------------------


def inspect_part(
    wish: Wish, part: int, count: int, progress: Progress | None = None, checking: Progress | None = None,
    check: Check | None = None,
) -> parts.Part:  # fmt: skip
    """Read one of several parts of an inspection; ``merge`` judges when all are there."""
    survey = look(wish.folder, wish.tag)
    chosen = choose(survey, wish)
    items = reading.plan(survey, chosen)
    mine = reading.share(items, part, count)
    records = reading.read_all(survey, mine, progress)
    covered = check_deep(survey, mine, records, check or Check(wish.threads, checking)) if wish.deep else None
    return parts.Part(part, count, wish.deep, survey, chosen, items, mine, records, covered)


def merge(files: Sequence[str], wish: Wish) -> Inspection:
    """Judge what the parts of an inspection have read.

    Args:
        files: that ``--part`` wrote, all of one inspection.
        wish: ``ranks`` and ``stage`` may differ from those of the parts.

    Raises:
        BadParts: a file is none, one is missing, or they are of different inspections.
    """
    joined = parts.join([parts.load(Path(name)) for name in files])
    found = {(item.stray, item.tag, item.name): record for part in joined
             for item, record in zip(part.mine, part.records, strict=True)}  # fmt: skip
    first = joined[0]
    records = [found[item.stray, item.tag, item.name] for item in first.items]
    return conclude(first.survey, wish, first.chosen, first.items, records, parts.covered(joined),
                    look_further=Path(first.survey.folder).is_dir())  # fmt: skip
