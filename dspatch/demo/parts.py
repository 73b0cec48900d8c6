"""The three lossy resumes: what is trained, what is loaded, and what a reader should see."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dspatch.demo.launch import Outcome, Tree, run

#: Step of the checkpoint, and how far curves go on behind it.
SAVED, SHOWN = 240, 60

Say = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """One fault.

    Attributes:
        key: ``a``, ``b`` or ``c``.
        title: one line for table and picture.
        origin: says whether it is recreated or upstream.
        world: number of ranks.
        config: of the engine.
        tag: the one that is asked for.
        load: more arguments for ``load_checkpoint``.
        goes_wrong: the run goes on after the save with this learning rate and its end becomes ``latest``.
        shows: variables of each run with dspatch: label -> variables.
    """

    key: str
    title: str
    origin: str
    world: int
    config: dict[str, Any]
    tag: str
    shows: dict[str, dict[str, str]]
    load: dict[str, Any] = field(default_factory=dict)
    goes_wrong: float = 0.0


@dataclass(frozen=True)
class Shown:
    """What came out of one part.

    Attributes:
        reference: losses after each step of the run that was never interrupted, from step 1.
        without: the resume without dspatch; its first loss is right after the load.
        runs: the resumes with dspatch, by label.
    """

    part: Part
    reference: list[float]
    without: Outcome
    runs: dict[str, Outcome]

    @property
    def lossy(self) -> bool:
        """Whether the resume without dspatch came up and was not a restore; without the fault this is False."""
        return not any(self.without.errors) and not self.right(self.without)

    def right(self, run: Outcome) -> bool:
        """Whether a resume is what was asked for, by its losses, to the last digit.

        A full load continues the uninterrupted run. A load that leaves out the optimizer by request only begins at it.
        """
        compared = 1 if self.part.load else None
        return not any(run.errors) and run.losses[:compared] == self.reference[SAVED - 1 :][:compared]


def _config(stage: int, precision: str, **zero: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 32,
        "steps_per_print": 1_000_000,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": stage, **zero},
        precision: {"enabled": True, **({"initial_scale_power": 10} if precision == "fp16" else {})},
    }


_BOTH = {"DSPATCH_MODE": "strict"}

PARTS = (
    Part(
        "a", "moments lost under a string tag", "recreated: no upstream release has this fault, a fork may", 4,
        _config(2, "fp16", offload_optimizer={"device": "cpu"}), "epoch_5_step_2000",
        {"DSPATCH_TAGS=error": {**_BOTH, "DSPATCH_TAGS": "error"}, "DSPATCH_TAGS=resolve": {**_BOTH}},
    ),
    Part(
        "b", "bf16 at stage 0: optimizer state not loaded, weights back to init", "upstream, untouched release", 2,
        _config(0, "bf16"), "step_240", {"default": _BOTH},
    ),
    Part(
        "c", "ZeRO-3 weights of another tag than the one asked for", "upstream, untouched release", 2,
        _config(3, "bf16", stage3_param_persistence_threshold=0), "best", {"default": _BOTH},
        load={"load_optimizer_states": False}, goes_wrong=0.5,
    ),
)  # fmt: skip


def show(part: Part, tree: Tree, say: Say) -> Shown:
    """Run one part: the uninterrupted job, then the resume without dspatch and each resume with it."""
    with tempfile.TemporaryDirectory(prefix="dspatch-demo-") as folder:
        say(f"({part.key}) {SAVED} steps, save as {part.tag!r}, go on ({part.world} ranks)")
        job = {"folder": folder, "config": part.config, "load": part.load}
        first = {**job, "seed": 1, "dspatch": False, "actions": _first_job(part)}
        reference = _finished(run(tree, part.world, first, {"DSPATCH": "off"}))
        again = {**job, "seed": 2, "actions": [["load", part.tag], ["train", [SAVED, SAVED + SHOWN]]]}
        say(f"({part.key}) resume without dspatch")
        without = run(tree, part.world, {**again, "dspatch": False}, {"DSPATCH": "off"})
        runs = {}
        for label, variables in part.shows.items():
            say(f"({part.key}) resume with dspatch ({label})")
            runs[label] = run(tree, part.world, {**again, "dspatch": True}, variables)
    return Shown(part, reference, without, runs)


def _first_job(part: Part) -> list[list[Any]]:
    actions: list[list[Any]] = [["train", [0, SAVED]], ["save", part.tag], ["train", [SAVED, SAVED + SHOWN]]]
    if part.goes_wrong:
        # What `latest` names is then a run that went wrong, a usual reason to go back to an older tag.
        actions += [["spoil", part.goes_wrong], ["train", [SAVED + SHOWN, SAVED + SHOWN + 10]], ["save", "diverged"]]
    return actions


def _finished(outcome: Outcome) -> list[float]:
    failed = [text for text in outcome.errors if text]
    if failed:
        raise RuntimeError(f"the uninterrupted run failed: {failed[0]}")
    return outcome.losses[: SAVED + SHOWN]
