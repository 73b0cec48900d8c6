"""The way of one load: request, agreement, DeepSpeed's own loader, measurement, agreement, policy."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from dspatch import log
from dspatch.activation import settings_in_force
from dspatch.checkpoint.shard import facts_of
from dspatch.errors import LOWER_TO_WARNING, DspatchError, LoadIncomplete, LoadRefused, NothingLoaded, explain, shorten
from dspatch.live import trust
from dspatch.settings import Settings
from dspatch.verdict import first_rate, first_step, intent, policy, preflight, surprises
from dspatch.verdict.found import NOTHING, REFUSED, Preflight, Refusal
from dspatch.verdict.matching import prefix_hint
from dspatch.verdict.outcome import NOT_CHECKED, RESTORED, Outcome
from dspatch.verdict.ranks import Message, Ranks
from dspatch.verdict.report import LoadReport
from dspatch.verdict.request import Request
from dspatch.verdict.running import RunningLoad, current, run
from dspatch.verdict.sentences import sentence_for

_reports: WeakKeyDictionary[Any, LoadReport] = WeakKeyDictionary()

#: Settings that have to be the same on all ranks, or one of them would wait for what another never says.
_SHARED_SETTINGS = ("mode", "tags", "verify", "disable", "unknown", "timeout", "expect")

_PUT_BACK = "this engine has no place for it: its state is in the returned client_state[{!r}], to be loaded by the caller"

Loader = Callable[..., Any]


def last_report(engine: Any) -> LoadReport | None:
    """The report of this engine's last measured load in this process, None when there was none."""
    return _reports.get(engine)


def remember(engine: Any, report: LoadReport) -> None:
    """Make ``report`` the engine's last one."""
    _reports[engine] = report


def guarded_load(wrapped: Loader, engine: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``load_checkpoint`` under the guard; what comes back is DeepSpeed's own return value.

    Raises:
        NothingLoaded: there is nothing to load. LoadRefused: the ranks disagree, or a file is absent, damaged or does
        not fit; the engine is untouched. LoadIncomplete: state was lost, or another rank failed. RankSilent: a rank did
        not answer. Whatever DeepSpeed raises, with a note.
    """
    if current() is not None:  # a loader that calls itself, such as an override in a subclass
        return wrapped(*args, **kwargs)
    settings = settings_in_force()
    request = Request.from_call(wrapped, args, kwargs)
    declared = intent.in_force(settings.expect)
    ranks = Ranks(settings.timeout)
    before = _agree_before(engine, request, settings, declared, ranks)
    if before.refusal is not None:
        return None, None
    load = RunningLoad(engine, before.request, files=before.files)
    held = surprises.Before.of(engine)
    started = time.monotonic()
    with _trust(settings):
        returned = _call(wrapped, args, kwargs, load, ranks, before)
    seconds = time.monotonic() - started
    if returned[0] is None:
        return _nothing(returned, load, settings, declared)
    # Imported late: it reads live tensors, and needs torch, which the rest of this file does not.
    from dspatch.verdict.measure import measure

    late = first_rate.comes_from_schedule(before.request, before.files)
    report = measure(
        engine, before, settings, declared, ranks, load_seconds=seconds,
        extra=first_rate.finding(engine, ranks.rank) if late and settings.verify != "off" else (),
    )  # fmt: skip
    report = _with_what_was_put_back(report, load, returned)
    remember(engine, report)
    _refuse_unmatched(load, settings)
    policy.apply(report, settings, ranks.rank)
    if settings.verify != "off":
        surprises.tell(load, held, settings.mode, ranks.rank, measured=not before.not_checked)
    first_step.watch_outside_scheduler(engine, ranks.rank)
    return returned


# --- before -----------------------------------------------------------------------------------------------------------


def _agree_before(
    engine: Any, request: Request, settings: Settings, declared: dict[str, str], ranks: Ranks
) -> Preflight:
    """Look at the files, compare with the other ranks. A refusal is raised here, in strict mode on every rank."""
    found = preflight.look(engine, request)
    refusal = found.refusal
    if refusal is not None and refusal.spoils and refusal.spoils <= declared.keys():
        refusal = found.refusal = None
    message: Message = {
        "request": found.request.to_dict(),
        "settings": {name: str(getattr(settings, name)) for name in _SHARED_SETTINGS},
        "refusal": [refusal.kind, refusal.text[:2500]] if refusal is not None else None,
        "saved_at": _saved_at(found),
        "steps": _optimizer_steps(found),
    }
    answer = ranks.agree("before", message, _compare_before)
    problem = answer["problem"]
    if problem is None:
        return found
    kind, text = problem
    if kind == NOTHING and declared.get("nothing") == "ok" and answer["all"]:
        if ranks.rank == 0:
            log.logger().info("nothing to load, as was declared to be fine:\n%s", text)
        found.refusal = Refusal(kind, text)
        return found
    text = f"{text}\n  or:       {LOWER_TO_WARNING} makes this a warning"
    if settings.mode == "strict":
        raise (NothingLoaded if kind == NOTHING else LoadRefused)(text)
    if ranks.rank == 0:
        log.tell(settings.mode, text)
    found.refusal = None  # DeepSpeed is let at it, as it would be without dspatch
    return found


def _saved_at(found: Preflight) -> Any:
    tree = found.files.get("model")
    return None if tree is None else [tree.get((key,)) for key in ("global_steps", "global_samples", "dp_world_size")]


def _optimizer_steps(found: Preflight) -> list[float]:
    tree = found.files.get("shard")
    optimizer = None if tree is None else facts_of(tree).optimizer
    return [] if optimizer is None else sorted(optimizer.steps)


def compare_refusals(messages: Sequence[Message]) -> Message:
    """Merge what the ranks refuse: one text that names them all, or no problem."""
    refused = [(rank, one) for rank, one in enumerate(messages) if one["refusal"]]
    if refused:
        kinds = {one["refusal"][0] for _, one in refused}
        everywhere = len(refused) == len(messages)
        kind = NOTHING if everywhere and kinds == {NOTHING} else REFUSED
        first = refused[0][1]
        where = shorten(f"rank {number} on {one['host']}" for number, one in refused)
        text = f"{first['refusal'][1]}\n  ranks:    {where}; the engine was not touched"
        if not everywhere:
            calm = len(messages) - len(refused)
            text += f"\n            {calm} of {len(messages)} ranks found what they need; none of them has loaded"
        return {"problem": [kind, text], "all": everywhere}
    return {"problem": None, "all": True}


def _compare_before(messages: Sequence[Message]) -> Message:
    refusals = compare_refusals(messages)
    if refusals["problem"] is not None:
        return refusals
    for key, what in (("request", "arguments of load_checkpoint"), ("settings", "dspatch settings"),
                      ("saved_at", "checkpoints under the same tag")):  # fmt: skip
        odd = [rank for rank, one in enumerate(messages) if one[key] != messages[0][key]]
        if odd:
            return {"problem": [REFUSED, _disagreement(messages, key, what, odd)], "all": False}
    return {"problem": _mixed_shards(messages), "all": False}


def _mixed_shards(messages: Sequence[Message]) -> list[str] | None:
    """Shards of one save share their optimizer steps, of which a rank may lack some where its partitions are empty."""
    first: list[float] = next((one["steps"] for one in messages if one["steps"]), [])
    odd = [rank for rank, one in enumerate(messages) if one["steps"] and not set(one["steps"]) & set(first)]
    if not odd:
        return None
    text = explain(
        "the shards under this tag are from different saves",
        expected=f"the optimizer step of rank {next(rank for rank, one in enumerate(messages) if one['steps'])}'s "
        f"shard on every rank: {shorten(f'{step:g}' for step in first)}",
        found=f"step {shorten(f'{step:g}' for step in messages[odd[0]]['steps'])} in the shard of "
        f"{shorten(f'rank {rank}' for rank in odd)}",
        where=messages[0]["request"]["folder"],
        do="restore the shards of this tag from where they were copied; the engine was not touched",
    )
    return [REFUSED, text]


def _disagreement(messages: Sequence[Message], key: str, what: str, odd: Sequence[int]) -> str:
    mine, theirs = messages[0][key], messages[odd[0]][key]
    if isinstance(mine, dict):
        names = [name for name in mine if mine[name] != theirs[name]]
        mine, theirs = ({name: one[name] for name in names} for one in (mine, theirs))
    return explain(
        f"the ranks have different {what}",
        expected=f"on every rank what rank 0 has: {mine}",
        found=f"on {shorten(f'rank {rank}' for rank in odd)} ({messages[odd[0]]['host']}): {theirs}",
        do="start all ranks alike; on several nodes, name DSPATCH* in .deepspeed_env and use one shared folder",
    )


# --- during -----------------------------------------------------------------------------------------------------------


def _trust(settings: Settings) -> AbstractContextManager[None]:
    if settings.trust != "deepspeed":
        return nullcontext()
    return trust.own_classes()


def _call(
    wrapped: Loader,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    load: RunningLoad,
    ranks: Ranks,
    before: Preflight,
) -> Any:
    """Run DeepSpeed's loader; have the ranks agree that it came back on all of them."""
    bound = inspect.signature(wrapped).bind(*args, **kwargs)
    if load.request.tag is not None:
        # The tag that the ranks agreed on, as text: `latest` may change, and some paths cannot join an integer.
        bound.arguments["tag"] = load.request.tag
    error: BaseException | None = None
    returned: Any = (None, None)
    try:
        with run(load), ranks.moving():
            returned = wrapped(*bound.args, **bound.kwargs)
        swallowed = load.raised[0] if load.raised else None
        if swallowed is not None:
            error = swallowed
            log.add_note(
                error, "dspatch: this was raised inside the load and swallowed on the way; the load reported success"
            )
    except Exception as raised:
        error = raised
    said = None if error is None else f"{type(error).__name__}: {error}"[:1500]
    answer = _agree_after(ranks, said, returned[0] is None, error)
    problem = LoadIncomplete(answer["problem"]) if answer["problem"] is not None else None
    if error is not None:
        advice = trust.advice(error, [name for tree in before.files.values() for name in tree.names])
        if advice or (advice := sentence_for(error, load.engine)):
            log.add_note(error, f"dspatch: {advice}")
        log.add_note(error, f"dspatch: raised on {ranks.label} while tag {load.request.tag!r} was loaded")
    failure = error or problem
    if failure is not None:
        log.add_note(failure, _left_behind(load.engine, before, ranks))
        raise failure
    return returned


def _left_behind(engine: Any, before: Preflight, ranks: Ranks) -> str:
    """What a load that failed half-way has changed already, on this rank."""
    if before.not_checked or not before.files:
        return f"dspatch: {ranks.label}: what was changed already is not known"
    from dspatch import live
    from dspatch.verdict.compare import compare

    try:
        request = before.request
        outcomes = compare(live.read(engine), before.files, asked=request.asked, strict=request.strict).outcomes
    except Exception as unreadable:  # the engine is half-made; the failure itself is what must come out
        return f"dspatch: {ranks.label}: what was changed already is not known ({type(unreadable).__name__})"
    done = [name for name, one in outcomes.items() if one.word == RESTORED]
    left = [f"{name} ({one.word})" for name, one in outcomes.items() if one.word != RESTORED]
    right, wrong = shorten(done, 9) or "nothing", shorten(left, 9) or "nothing"
    return f"dspatch: {ranks.label}: as in the files now: {right}; not so: {wrong}"


def _agree_after(ranks: Ranks, said: str | None, nothing: bool, error: BaseException | None) -> Message:
    try:
        return ranks.agree("after", {"error": said, "nothing": nothing}, _compare_after)
    except DspatchError as silence:
        if error is None:
            raise
        log.add_note(error, f"dspatch: {silence}")
        return {"problem": None}


def _compare_after(messages: Sequence[Message]) -> Message:
    failed = [(rank, one) for rank, one in enumerate(messages) if one["error"]]
    if failed:
        return {
            "problem": explain(
                f"the load failed on {len(failed)} of {len(messages)} ranks",
                expected="every rank restored",
                found=failed[0][1]["error"],
                where=shorten(f"rank {rank} on {one['host']}" for rank, one in failed),
                do="the engines are changed in part on every rank: build them anew before loading again",
            )
        }
    empty = [rank for rank, one in enumerate(messages) if one["nothing"]]
    if empty and len(empty) < len(messages):
        return {
            "problem": explain(
                "some ranks loaded and some found nothing",
                expected="the same on every rank",
                found=f"nothing on rank {shorten(empty)}",
                do="the engines hold different runs now: build them anew before loading again",
            )
        }
    return {"problem": None}


def _with_what_was_put_back(report: LoadReport, load: RunningLoad, returned: Any) -> LoadReport:
    """Hand out what DeepSpeed left out of ``client_state``, and say so in the report."""
    client_state = returned[1]
    if not load.put_back or not isinstance(client_state, dict):
        return report
    for key, value in load.put_back.items():
        client_state.setdefault(key, value)
    told = {key: Outcome(NOT_CHECKED, _PUT_BACK.format(key)) for key in load.put_back if key in report.outcomes}
    return replace(report, outcomes={**report.outcomes, **told})


def _nothing(returned: Any, load: RunningLoad, settings: Settings, declared: dict[str, str]) -> Any:
    """DeepSpeed came back with nothing although the files were there."""
    text = explain(
        "DeepSpeed loaded nothing",
        expected=f"tag {load.request.tag!r}",
        found="load_checkpoint returned no path",
        where=load.request.folder,
        lower=LOWER_TO_WARNING,
    )
    if settings.mode == "strict" and declared.get("nothing") != "ok":
        raise NothingLoaded(text)
    log.logger().log(30 if settings.mode == "warn" else 20, "%s", text)
    return returned


def _refuse_unmatched(load: RunningLoad, settings: Settings) -> None:
    """A load in which no name met is no partial load; both sides' names tell the prefix."""
    if load.matched != 0 or not load.not_restored or not load.no_source:
        return
    text = explain(
        "no weight was restored: no name of the checkpoint is a name of the model",
        expected=f"in the model, not in the checkpoint: {shorten(load.no_source)}",
        found=f"in the checkpoint, not restored: {shorten(load.not_restored)}",
        do=prefix_hint(load.no_source, load.not_restored)
        or "compare the names: torch.compile and wrappers put a prefix before them",
        lower=LOWER_TO_WARNING,
    )
    if settings.mode == "strict":
        raise LoadIncomplete(text)
    log.tell(settings.mode, text)
