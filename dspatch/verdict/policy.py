"""What follows from a report: an error, one WARNING, or silence."""

from __future__ import annotations

from pathlib import Path

from dspatch import log
from dspatch.errors import LOWER_TO_WARNING, LoadIncomplete, explain, shorten
from dspatch.settings import Settings
from dspatch.verdict.outcome import RESTORED, Finding
from dspatch.verdict.report import LoadReport
from dspatch.verdict.request import OPTIMIZER_PARTS

_HOLDS = {
    "masters": "rebuilt from the 16-bit weights, without their fp32 bits",
    "moments": "what this engine had before (fresh in a new process)",
    "optimizer_step": "what this engine had before",
    "param_groups": "this run's own hyperparameters",
    "loss_scaler": "this run's own scale",
    "lr_scheduler": "this run's own schedule, from where it stood",
    "counters": "this run's own step counts",
    "weights": "what this model had before, where names do not meet",
    "frozen": "what this model had before",
    "random_ltd": "this run's own schedule, from its beginning",
    "data_sampler": "this run's own position, at its beginning",
}


def apply(report: LoadReport, settings: Settings, rank: int) -> None:
    """Say or raise what the mode asks for. The same decision on every rank; only rank 0 logs.

    Raises:
        LoadIncomplete: strict mode, and something that was asked for is not what the files hold.
    """
    if rank == 0:
        _write(report, settings)
        _say_left_out(report, settings)
        _say_not_checked(report, settings)
        _say_restored_so(report, settings)
    if report.ok:
        return
    text = incomplete(report)
    if settings.mode == "strict":
        raise LoadIncomplete(text)
    if rank == 0:
        log.tell(settings.mode, text)


def incomplete(report: LoadReport) -> str:
    """The text of ``LoadIncomplete``."""
    lost = ", ".join(f"{name} {outcome.word}" for name, outcome in report.lost.items())
    declared = ", ".join(f'{name}="fresh"' for name in report.lost)
    return (
        explain(
            f"the load returned, but training state is not what tag {report.request.tag!r} holds: {lost}",
            do=(
                "do not train on from here: the first steps would not continue the run that saved",
                f"if this is what you want: dspatch.expect({declared})",
            ),
            lower=LOWER_TO_WARNING,
        )
        + f"\n{report}"
    )


def _say_left_out(report: LoadReport, settings: Settings) -> None:
    left = report.left_out
    if not left:
        return
    flags = report.request.flags()
    lines = [f"partial load of tag {report.request.tag!r} by request ({flags})" if flags else
             f"partial load of tag {report.request.tag!r}"]  # fmt: skip
    for name in left:
        holds = _HOLDS.get(name, "what it held before")
        if name == "masters" and not OPTIMIZER_PARTS & set(left) - {"masters"}:
            holds = "something else than the files hold"
        lines.append(f"  {name}: left out, now holds {holds}")
        if name in ("weights", "frozen"):
            lines += [f"    {text}" for text in dict.fromkeys(map(_names_of, report.findings)) if text.startswith(name)]
    log.tell(settings.mode, "\n".join(lines))


def _names_of(one: Finding) -> str:
    more = f" and {one.count - len(one.names)} more" if one.count > len(one.names) else ""
    return f"{one.component} {one.found}: {', '.join(one.names)}{more}"


def _say_not_checked(report: LoadReport, settings: Settings) -> None:
    # A level that the user chose says nothing new; a reader that is not there does.
    listed = {name: one for name, one in report.not_checked.items() if "DSPATCH_VERIFY" not in one.reason}
    if not listed or settings.verify == "off":
        return
    told = "; ".join(f"{name} ({one.reason})" for name, one in listed.items())
    log.tell(settings.mode, f"not checked after the load of tag {report.request.tag!r}: {told}")


def _say_restored_so(report: LoadReport, settings: Settings) -> None:
    """What was restored to the byte although the files do not fit each other."""
    odd = [one for one in report.findings if one.outcome == RESTORED]
    if odd:
        ranks = shorten(f"rank {number}" for number in sorted({number for one in odd for number in one.ranks}))
        log.tell(
            settings.mode,
            f"tag {report.request.tag!r} was restored as it lies in the files, but {odd[0].found} "
            f"({ranks}, first {shorten(odd[0].names, 2)}); a shard of another save, another precision, "
            "or weights that were replaced before the save leave this behind",
        )


def _write(report: LoadReport, settings: Settings) -> None:
    if not settings.report:
        return
    try:
        Path(settings.report).write_text(report.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        log.logger().warning("the report could not be written to %s: %s", settings.report, error)
