"""``dspatch.verify_after_load``: the verdict of a load, asked for again, and the place for checks of one's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dspatch.activation import settings_in_force
from dspatch.errors import LoadRefused, explain
from dspatch.verdict import checks, intent, policy, preflight
from dspatch.verdict.measure import measure
from dspatch.verdict.outcome import MISMATCH, Finding
from dspatch.verdict.ranks import Message, Ranks
from dspatch.verdict.report import LoadReport
from dspatch.verdict.request import Request, tag_text
from dspatch.verdict.session import compare_refusals, last_report, remember


class _VerifyAfterLoad:
    """Callable; see ``__call__``. ``register`` and ``unregister`` hold checks of one's own."""

    register = staticmethod(checks.register)
    unregister = staticmethod(checks.unregister)

    def __call__(
        self, engine: Any, load_dir: Any = None, tag: Any = None, expected_step: int | None = None
    ) -> LoadReport:
        """Compare the engine with the files of a tag, on every rank. Call it on all ranks, before the first step.

        Args:
            engine: the DeepSpeed engine.
            load_dir: the checkpoint folder; that of the last load by default.
            tag: the tag; that of the last load by default, else the one that ``latest`` names.
            expected_step: what ``engine.global_steps`` must be.

        Returns:
            The report, the same on all ranks.

        Raises:
            LoadRefused: there is no last load to repeat, or the files cannot be compared with.
            LoadIncomplete: strict mode, and something is not what the files hold.
            RankSilent: a rank did not answer.
        """
        settings = settings_in_force()
        request = _request(engine, load_dir, tag)
        ranks = Ranks(settings.timeout)
        found = preflight.look(engine, request)
        # What is loaded already is measured, wherever it lies.
        refusal = found.refusal if found.refusal is not None and not found.refusal.spoils else None
        message: Message = {"refusal": [refusal.kind, refusal.text[:2500]] if refusal is not None else None}
        answer = ranks.agree("before verifying", message, compare_refusals)
        if answer["problem"] is not None:
            raise LoadRefused(answer["problem"][1])
        report = measure(
            engine, found, settings, intent.in_force(settings.expect), ranks,
            extra=_wrong_step(engine, expected_step, ranks.rank),
        )  # fmt: skip
        remember(engine, report)
        policy.apply(report, settings, ranks.rank)
        return report


def _request(engine: Any, load_dir: Any, tag: Any) -> Request:
    last = last_report(engine)
    if last is not None:
        request = last.request
        if load_dir is not None:
            request = replace(request, folder=str(load_dir), tag=None)
        return replace(request, tag=tag_text(tag)) if tag is not None else request
    if load_dir is None:
        raise LoadRefused(
            explain(
                "there is no load to verify",
                expected="engine.load_checkpoint(...) under dspatch before, or load_dir=",
                found="neither",
                do="call dspatch.verify_after_load(engine, load_dir=..., tag=...)",
            )
        )
    return Request(folder=str(load_dir), tag=tag_text(tag))


def _wrong_step(engine: Any, expected: int | None, rank: int) -> tuple[Finding, ...]:
    steps = int(engine.global_steps)
    if expected is None or steps == expected:
        return ()
    finding = Finding(
        "counters", MISMATCH, rank, "", ("global_steps",), 1, f"global_steps {expected}", f"global_steps {steps}"
    )
    return (finding,)


verify_after_load = _VerifyAfterLoad()
