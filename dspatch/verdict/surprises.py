"""What a load that restored everything may still surprise with: said behind it, never an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dspatch import log
from dspatch.errors import explain, shorten
from dspatch.live import chosen, gradients, pipeline
from dspatch.live.attributes import open_save
from dspatch.verdict.running import RunningLoad


@dataclass(slots=True)
class Before:
    """What an engine holds before a load.

    Attributes:
        accumulated: micro-batches whose gradients wait for a step, and how many make one.
        fixed, hyperparameters: what the configuration chose, see ``dspatch.live.chosen``.
        open_save: tag of a save that is not written yet.
        state: writes to the optimizer's state so far, see ``dspatch.live.chosen.written_to``.
    """

    accumulated: tuple[int, int] = (0, 1)
    fixed: dict[str, Any] = field(default_factory=dict)
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    open_save: str | None = None
    state: dict[int, int] | None = None

    @classmethod
    def of(cls, engine: Any) -> Before:
        """Look at an engine; of one that looks otherwise than expected, nothing is known."""
        try:
            settings = chosen.fixed(engine), chosen.hyperparameters(engine)
            return cls(gradients.accumulated(engine), *settings, open_save(engine), chosen.written_to(engine))
        except Exception as error:
            log.logger().debug("the engine could not be looked at before the load: %r", error)
            return cls()


def tell(load: RunningLoad, before: Before, mode: str, rank: int, measured: bool) -> None:
    """Say what the load left behind, replaced or passed over.

    Args:
        load: it.
        before: what the engine held.
        mode: in force.
        rank: rank 0 speaks for all, but of what is in no file every rank names its own.
        measured: whether the state was compared with the files, which tells names that did not meet.
    """
    engine = load.engine
    unsaved = pipeline.unsaved(engine)
    if unsaved:
        log.tell(mode, f"{log.rank_label()} {_in_no_file(unsaved)}".strip())
    if rank:
        return
    if not measured and (load.no_source or load.not_restored):
        log.tell(mode, _did_not_meet(load))
    if before.open_save is not None:
        log.tell(mode, _not_written(before.open_save, load.request.tag))
    after = Before.of(engine)
    done, whole = after.accumulated
    if done and before.accumulated[0]:
        log.tell(mode, _left_over(done, whole))
    if "moments" not in load.request.asked and None not in (before.state, after.state) and after.state != before.state:
        log.tell(mode, _loaded_anyhow(load.request.flags()))
    replaced = chosen.changed(before.fixed, after.fixed)
    if replaced:
        log.tell(mode, _overruled(replaced))
    other = chosen.changed(before.hyperparameters, after.hyperparameters)
    if other:
        log.logger().info("the checkpoint's hyperparameters are in force, not the configured ones: %s", shorten(other))


def _in_no_file(names: list[str]) -> str:
    return explain(
        "parameters of the pipeline are in no checkpoint file: they hold what they held before the load",
        found=shorten(names),
        do="save them in client_state, or give a tied module one use without a forward_fn",
    )


def _did_not_meet(load: RunningLoad) -> str:
    return explain(
        "names of weights did not meet, and the load was not strict",
        expected=f"in the model, not in the checkpoint: {shorten(load.no_source) or 'none'}",
        found=f"in the checkpoint, not restored: {shorten(load.not_restored) or 'none'}; {load.matched or 0} names met",
    )


def _loaded_anyhow(flags: str) -> str:
    return explain(
        f"the optimizer state was loaded although it was not asked for ({flags})",
        expected="the optimizer state that the engine had",
        found="that of the checkpoint: this DeepSpeed does not look at the flags of such a load",
        do="clear engine.optimizer.optimizer.state on every rank before the first step, if you want none",
    )


def _not_written(tag: str, loaded: str | None) -> str:
    return explain(
        f"tag {loaded!r} was loaded while the save of tag {tag!r} was still being written",
        expected="a load behind a finished save",
        found="a save that the engine finishes at its next step",
        do="leave the patch commit-first on, or take a step between save and load",
    )


def _left_over(done: int, whole: int) -> str:
    return explain(
        "gradients from before the load are still accumulated: they go into its first step",
        expected="a load between two steps",
        found=f"{done} of {whole} micro-batches since the last step",
        do="call load_checkpoint at an accumulation boundary (engine.is_gradient_accumulation_boundary()), "
        "or build the engine anew before the load",
    )


def _overruled(replaced: list[str]) -> str:
    return explain(
        "the checkpoint's settings replaced those of this run's configuration",
        expected="what is configured",
        found=shorten(replaced),
        do="set them on engine.optimizer after the load, or configure what the checkpoint has",
    )
