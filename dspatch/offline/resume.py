"""Can a job of N ranks at stage S resume a tag, and if not, with which command."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from dspatch.checkpoint import ways
from dspatch.errors import DspatchError
from dspatch.offline.findings import WHOLE
from dspatch.offline.judge import Judged
from dspatch.offline.survey import Survey

YES, CONVERT, WEIGHTS, NO = "yes", "after conversion", "weights only", "no"


class NoSuchJob(DspatchError):
    """The number of ranks or the stage is none."""


@dataclass(slots=True)
class Answer:
    """Whether and how a job can resume a tag.

    Attributes:
        tag: the tag. ranks, stage: of the job that wants to resume.
        answer: ``yes``, ``after conversion``, ``weights only``, ``no``.
        why: one sentence.
        commands: to run, in order. load: what to set in the configuration, or to pass to ``load_checkpoint``.
        losses: what such a resume does not bring back.
        converter: where the converter's options were read: a version and path; empty when DeepSpeed is not installed.
    """

    tag: str
    ranks: int
    stage: int
    answer: str
    why: str
    commands: list[str] = field(default_factory=list)
    load: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    converter: str = ""

    def as_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def answer(judged: Judged, survey: Survey, ranks: int, stage: int) -> Answer:
    """Can ``ranks`` ranks at ZeRO stage ``stage`` resume this tag.

    Args:
        judged: the tag.
        survey: of its folder.
        ranks: all of them; model-parallel ranks are divided out.
        stage: 0 to 3.

    Raises:
        NoSuchJob: ``ranks`` is less than 1, or ``stage`` is not 0 to 3.
    """
    if ranks < 1 or stage not in (0, 1, 2, 3):
        raise NoSuchJob(f"a job has at least one rank and a stage of 0 to 3, not {ranks} ranks at stage {stage}")
    laid = judged.layout
    made = Answer(judged.tag, ranks, stage, NO, "")
    if judged.verdict != WHOLE:
        made.why = f"the tag is {judged.verdict}: {judged.why}"
        return made
    if ranks % laid.mp:
        made.why = f"{ranks} ranks cannot be divided among the {laid.mp} model-parallel ranks of this checkpoint"
        return made
    dp, saved = ranks // laid.mp, laid.stage or 0
    if laid.universal:
        return _universal(made, saved, stage)
    style = next((one.optimizer["style"] for one in judged.records if one.optimizer is not None), "")
    if _same_form(saved, style, stage):
        if dp == laid.dp or style in ("torch", "fp16"):
            made.answer, made.why = YES, _as_is(laid.dp, dp, saved, stage)
            return made
        if style == "zero12" and any(one.optimizer["elastic"] for one in judged.records if one.optimizer is not None):
            made.answer = YES
            made.why = f"elastic_checkpoint: the {laid.dp} parts are merged and cut anew for {dp} ranks"
            made.losses = ["learning rate, betas and weight decay of the groups (set them in the script)"]
            return made
    return _convert(made, judged, survey, style, dp)


def _same_form(saved: int, style: str, stage: int) -> bool:
    """Whether the optimizer of that stage reads this form of state; stages 1 and 2 share theirs."""
    if style in ("torch", "fp16"):
        return stage == 0
    if style == "bf16":
        return stage in (1, 2) or stage == saved
    return stage == 3 if saved == 3 else stage in (1, 2)


def _as_is(saved: int, now: int, stage_saved: int, stage: int) -> str:
    if saved != now:
        return f"stage 0 keeps whole optimizer state, which {now} ranks read as {saved} did"
    if stage_saved != stage:
        return (
            f"stages {stage_saved} and {stage} write the same files, and the number of data-parallel ranks is the same"
        )
    return "the stage and the number of data-parallel ranks are those of the save"


def _universal(made: Answer, saved: int, stage: int) -> Answer:
    if stage == 0:
        made.answer, made.why = NO, "universal checkpoints are loaded by ZeRO (stages 1 to 3) and by BF16_Optimizer"
        return made
    if saved and not ways.same_names(saved, stage):
        made.why = f"it was made from a checkpoint of stage {saved}, whose model files have other names"
        return made
    made.answer, made.why = YES, "a universal checkpoint is cut for the ranks that load it"
    made.load = [f'"checkpoint": {{"load_universal": true}} in the configuration, and tag={made.tag!r}']
    made.losses = _universal_losses(stage, 1)
    return made


def _convert(made: Answer, judged: Judged, survey: Survey, style: str, dp: int) -> Answer:
    laid = judged.layout
    reason = _reason(laid.dp, dp, laid.stage or 0, made.stage)
    refusal = _inconvertible(judged, style)
    saved = laid.stage or 0
    if not refusal and made.stage == 0:
        refusal = "universal checkpoints are not loaded at stage 0"
    if not refusal and not ways.same_names(saved, made.stage):
        refusal = "stage 3 has model files of other names, also in a universal checkpoint"
    if refusal:
        made.answer, made.why = WEIGHTS, f"{reason}, and {refusal}"
        _weights_only(made, judged, survey)
        return made
    tool = ways.Converter.installed()
    made.answer, made.why, made.converter = CONVERT, reason, tool.where
    made.commands = [ways.universal_command(f"{survey.folder}/{judged.tag}", saved, _has_universal_info(judged))]
    made.load = [ways.universal_load(judged.tag)]
    made.losses = _universal_losses(made.stage, max(len(one.shapes) for one in judged.records))
    if laid.stage == 3 and tool.stage3 is False:
        made.answer, made.commands, made.load = NO, [], []
        made.why = f"{reason}, and the converter of the installed DeepSpeed ({tool.where}) does not know stage 3"
    return made


def _weights_only(made: Answer, judged: Judged, survey: Survey) -> None:
    saved = judged.layout.stage or 0
    made.losses = ["moments and optimizer step", "learning-rate schedule and counters, unless they are set by hand"]
    if 3 not in (saved, made.stage):
        made.load = [f"load_checkpoint(..., {ways.WEIGHTS_ONLY})"]
        made.losses[1] = "fp32 precision of the masters (they come from the 16-bit weights)"
        return
    made.load = ["load these weights into the model before deepspeed.initialize"]
    if saved:
        made.commands = [ways.fp32_command(survey.folder, judged.tag)]
    else:
        made.load = [f"torch.load({survey.folder + '/' + judged.tag + '/mp_rank_00_model_states.pt'!r})['module'], into the "
                     "model before deepspeed.initialize"]  # fmt: skip


def _has_universal_info(judged: Judged) -> bool:
    """Whether the model files carry what the converter wants to know (Megatron-DeepSpeed writes it)."""
    return any("universal_checkpoint_info" in one.client_keys for one in judged.records)


def _reason(saved: int, now: int, stage_saved: int, stage: int) -> str:
    parts = []
    if saved != now:
        parts.append(f"it was saved by {saved} data-parallel ranks, not {now}")
    if stage_saved != stage:
        parts.append(
            f"at stage {stage_saved}, not {stage}" if parts else f"it was saved at stage {stage_saved}, not {stage}"
        )
    return ", ".join(parts) or "its optimizer state has another form"


def _inconvertible(judged: Judged, style: str) -> str:
    laid = judged.layout
    if any(one.round_robin for one in judged.records):
        return "round_robin_gradients makes the converter scramble weights and moments (fault C14)"
    if style in ("torch", "fp16") or not laid.sharded:
        return "the converter reads ZeRO shards only"
    if laid.moe:
        return "the converter does not carry the state of experts over"
    names = {name for one in judged.records if one.optimizer is not None for name in one.optimizer["names"]}
    if not {"exp_avg", "exp_avg_sq"} <= names:
        return f"the converter knows Adam only, and this is {', '.join(sorted(names)) or 'an optimizer without state'}"
    return ""


def _universal_losses(stage: int, groups: int) -> list[str]:
    losses = ["buffers and frozen parameters (a universal load leaves them as the model was built)",
              "loss scaler state"]  # fmt: skip
    if stage in (1, 2):
        losses.append(
            "hyperparameters and optimizer step where the release does not restore them: check lr after the load"
        )
    elif groups > 1:
        losses.append("hyperparameters of all groups become those of the first (fault C3)")
    return losses
