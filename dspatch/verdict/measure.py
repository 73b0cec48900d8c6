"""Measuring a load: this rank's live state against its files, then one report for all ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from dspatch import live
from dspatch.settings import Settings
from dspatch.verdict import checks, progress
from dspatch.verdict.compare import compare, unchecked
from dspatch.verdict.found import Preflight
from dspatch.verdict.outcome import NOT_CHECKED, Finding, Outcome
from dspatch.verdict.ranks import Message, Ranks, fitting
from dspatch.verdict.report import LoadReport, from_merged, merge_messages


def measure(
    engine: Any,
    found: Preflight,
    settings: Settings,
    declared: Mapping[str, str],
    ranks: Ranks,
    *,
    load_seconds: float = 0.0,
    extra: tuple[Finding, ...] = (),
) -> LoadReport:
    """Compare on this rank, agree with the others, run the registered checks.

    Args:
        engine: after the load.
        found: from the preflight: the request, and the trees of this rank's files.
        settings: in force.
        declared: intent in force.
        ranks: to agree with.
        load_seconds: how long DeepSpeed's part took.
        extra: findings of the caller's own.

    Raises:
        RankSilent: a rank did not answer. LoadIncomplete: a registered check raised on another rank; on its own rank
        whatever it raised.
    """
    started = time.monotonic()
    asked = found.request.asked
    if found.not_checked:
        comparison = unchecked(asked, found.not_checked)
    else:
        with progress.told(ranks.rank):
            comparison = compare(
                live.read(engine), found.files, level=settings.verify, asked=asked, threads=settings.threads,
                strict=found.request.strict,
            )  # fmt: skip
    outcomes = dict(comparison.outcomes)
    if "weights" in asked and "weights" not in outcomes:
        # Every model has some; silence about them would read as passed.
        outcomes["weights"] = Outcome(NOT_CHECKED, "no weight of this engine has a place in the files")
    for finding in extra:
        outcomes[finding.component] = Outcome(finding.outcome)
    message: Message = {
        "outcomes": {name: [one.word, one.reason] for name, one in outcomes.items()},
        "findings": [one.to_dict() for one in (*extra, *comparison.findings)],
        "seconds": {"load": round(load_seconds, 3), "verdict": round(time.monotonic() - started, 3)},
        "bytes_compared": comparison.bytes_compared,
        "largest": comparison.largest,
        "checks": len(checks.registered()),
    }
    merged = ranks.agree("verdict of", fitting(message, "findings"), _merge)
    report = from_merged(merged, found.request, ranks.world, declared)
    if merged["checks"]:
        checks.run_all(engine, report, ranks)
    return report


def _merge(messages: Any) -> Message:
    return {**merge_messages(messages), "checks": max(one["checks"] for one in messages)}
