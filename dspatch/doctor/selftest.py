"""The guard, tried out: two real ranks save, a bit of one shard is flipped on disk, and the load has to raise everywhere.

A healthy tag is loaded first, which has to be silent: an alarm that always rings would pass otherwise.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from dspatch.checkpoint.archive import Archive
from dspatch.demo.launch import JobFailed, Outcome, Tree, run
from dspatch.doctor.checks import Answer, Check, fail, ok, skip
from dspatch.doctor.here import Here

#: Seconds for all of it.
LIMIT = 60.0

_WORLD = 2
_CONFIG = {
    "train_micro_batch_size_per_gpu": 32,
    "steps_per_print": 1_000_000,
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
}
#: Losses come one for each step, and one for each load that came back.
_STEPS = 3
_HEALTHY, _DAMAGED = "healthy", "damaged"
_AGAIN = (
    "run `dspatch doctor --selftest` again: the first start of a DeepSpeed on a CPU compiles an operator for a minute"
)


def _load(here: Here) -> Answer:
    if here.deepspeed is None:
        return skip("could not be run: no DeepSpeed")
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="dspatch-doctor-") as folder:
            outcome = _save_damage_load(folder)
    except JobFailed as error:
        if time.monotonic() - started >= LIMIT:
            return skip(f"could not be run: no result within {LIMIT:g} s", _AGAIN)
        lines = [line for line in str(error).splitlines() if line.strip()]
        return Answer("SKIP", f"could not be run: DeepSpeed's ranks ended without a result: {lines[-1] if lines else ''}",
                      "see torch.imports and deepspeed.imports", tuple(lines[-30:]))  # fmt: skip
    return _judge(outcome, time.monotonic() - started)


def _save_damage_load(folder: str) -> Outcome:
    """Two tags of one step; one is damaged. The engine trains on before it loads, so that a load that does nothing shows."""
    actions = [
        ["train", [0, 2]], ["save", _HEALTHY], ["save", _DAMAGED],
        ["call", [f"{__name__}:{damage.__name__}", str(Path(folder, _DAMAGED))]],
        ["train", [2, _STEPS]], ["load", _HEALTHY], ["load", _DAMAGED],
    ]  # fmt: skip
    job: dict[str, Any] = {"folder": folder, "config": _CONFIG, "load": {}, "seed": 1, "dspatch": True,
                           "without_operators": True, "actions": actions}  # fmt: skip
    return run(Tree(), _WORLD, job, {"DSPATCH_MODE": "strict"}, limit=LIMIT)


def damage(tag: str) -> str:
    """Flip one bit in the largest tensor of the last rank's shard; torch does not notice.

    Args:
        tag: the folder of the tag.

    Returns:
        The name of the file.

    Raises:
        FileNotFoundError: the tag has no shard.
    """
    shards = sorted(Path(tag).glob("*optim_states.pt"))
    if not shards:
        raise FileNotFoundError(f"the save wrote no shard: {', '.join(sorted(os.listdir(tag)))}")
    records = Archive(shards[-1]).records
    record = max((one for name, one in records.items() if name.startswith("data/")), key=lambda one: one.size)
    with shards[-1].open("r+b") as file:
        file.seek(record.offset + record.size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    return shards[-1].name


def _judge(outcome: Outcome, seconds: float) -> Answer:
    report = "dspatch does not guard this DeepSpeed as it should: report it, with --verbose"
    evidence = [*(str(error) for error in outcome.errors), *outcome.said]
    lines = [line for text in evidence for line in text.splitlines()]
    warnings = [text for text in outcome.said if not text.startswith(("INFO", "DEBUG"))]
    if len(outcome.losses) <= _STEPS:
        raised = next((str(error) for error in outcome.errors if error), "").partition("\n")[0]
        return fail(f"a healthy checkpoint was not saved and loaded: {raised or 'nothing raised'}", report, *lines)
    if warnings:
        return fail(f"a healthy save and load was not silent: {warnings[0]}", report, *lines)
    if not all(str(error).startswith("LoadIncomplete") for error in outcome.errors) or len(set(outcome.errors)) != 1:
        told = ", ".join(str(error).partition(":")[0] for error in outcome.errors)
        return fail(f"a flipped bit in a shard did not raise the same error on all ranks ({told})", report, *lines)
    return ok(f"a flipped bit in a shard raised LoadIncomplete on {len(outcome.errors)} ranks, a healthy load was silent "
              f"({seconds:.0f} s)", *lines)  # fmt: skip


CHECKS = (Check("selftest.load", _load),)
