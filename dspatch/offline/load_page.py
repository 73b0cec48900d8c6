"""A load report as one page, of the same blocks as that of an inspection. The grid has one cell for each rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dspatch.errors import shorten
from dspatch.offline.blocks import MOST_CELLS, bars, cell, definitions, finding, frame, grid, table, text, verdict
from dspatch.offline.text import size

_LOST = ("mismatch", "fresh", "absent")
_KIND = {"restored": "good", "left out": "warn", "not checked": "warn"}


def load_page(report: Mapping[str, Any], version: str) -> str:
    """The page as text.

    Args:
        report: what ``LoadReport.to_dict`` gives and ``DSPATCH_REPORT`` writes.
        version: of dspatch.
    """
    request = report["request"]
    return frame(f"load of {request['tag']} from {request['folder']}: {_word(report)[1]}", _body(report), version)


def _word(report: Mapping[str, Any]) -> tuple[str, str, str]:
    """How the verdict is shown, its word, and why."""
    lost = [f"{name} {one['outcome']}" for name, one in report["outcomes"].items()
            if one["outcome"] in _LOST and name not in report["intent"]]  # fmt: skip
    if lost:
        return "bad", "not restored", ", ".join(lost)
    rest = [f"{name} {one['outcome']}" for name, one in report["outcomes"].items() if one["outcome"] != "restored"]
    return ("warn", "restored, but not all of it", ", ".join(rest)) if rest else ("good", "restored", "")


def _body(report: Mapping[str, Any]) -> Iterator[str]:
    request, outcomes = report["request"], report["outcomes"]
    yield f"<h1>Load of {text(request['tag'])} from {text(request['folder'])}</h1>"
    yield verdict(*_word(report))
    yield from _findings(report["findings"])
    yield "<h3>Facts</h3>" + definitions(_facts(report))
    rows = [(name, f"{one['outcome']} ({one['reason']})" if one["reason"] else one["outcome"], _ranks(report, name))
            for name, one in outcomes.items()]  # fmt: skip
    yield "<h3>Components</h3>" + table(("component", "outcome", "ranks"), rows)
    yield from _grid(report)
    for kind, values in report["largest"].items():
        if values:
            head = f"<h3>Largest {text(kind)} of each rank</h3>"
            yield head + bars({f"rank {rank}": value for rank, value in enumerate(values)}, "{:.3g}")
    yield '<p class="dim">Data order and random-number state are in no DeepSpeed checkpoint.</p>'


def _facts(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    request, seconds = report["request"], report["seconds"]
    yield "ranks", f"{report['world']:,}"
    options = ("strict", "optimizer_states", "scheduler_states", "module_only", "custom_load")
    yield "asked for", ", ".join(f"{name}={request[name]}" for name in options if name in request)
    yield "declared", ", ".join(f"{name}={word}" for name, word in report["intent"].items()) or "nothing"
    yield "took", f"{seconds.get('load', 0):.3g} s in DeepSpeed, {seconds.get('verdict', 0):.3g} s for the verdict"
    yield "compared", f"{size(report['bytes_compared'])} of live tensors"


def _ranks(report: Mapping[str, Any], component: str) -> str:
    """Which ranks have which outcome."""
    by_word = report["by_rank"].get(component)
    if not by_word or (len(by_word) == 1 and len(next(iter(by_word.values()))) == report["world"]):
        return "all"
    return "; ".join(f"{word}: {shorten(ranks)}" for word, ranks in by_word.items())


def _grid(report: Mapping[str, Any]) -> Iterator[str]:
    odd: dict[int, list[str]] = {}
    bad: set[int] = set()
    for component, by_word in report["by_rank"].items():
        for word, ranks in by_word.items():
            for rank in ranks if word != "restored" else ():
                odd.setdefault(rank, []).append(f"{component} {word}")
                if word in _LOST and component not in report["intent"]:
                    bad.add(rank)
    world = report["world"]
    drawn = range(world) if world <= MOST_CELLS else sorted(odd)[:MOST_CELLS]
    cells = []
    for rank in drawn:
        said = odd.get(rank, [])
        kind = "bad" if rank in bad else "warn" if said else ""
        word = "not restored" if rank in bad else "in part" if said else "restored"
        cells.append(cell(kind, f"rank {rank}", f"rank {rank}: {word}", ", ".join(said)))
    yield f"<h3>Ranks</h3><p>{world:,} ranks, {world - len(odd):,} restored in all components.</p>"
    yield grid(cells, world - len(drawn))


def _findings(findings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in findings:
        more = one["count"] - len(one["names"])
        names = ", ".join(one["names"]) + (f" and {more:,} more" if more > 0 else "")
        ranks = shorten(one["ranks"] or [one["rank"]])
        rows = (("rank", ranks), ("file", one["file"]), ("names", names), ("expected", one["expected"]),
                ("found", one["found"]), ("do", one["do"]))  # fmt: skip
        kind = "bad" if one["outcome"] in _LOST else "warn" if _KIND[one["outcome"]] == "warn" else "dim"
        yield finding(kind, one["component"], one["outcome"], rows)
