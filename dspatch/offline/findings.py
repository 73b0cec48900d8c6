"""What can be wrong with a checkpoint: the findings, and the list of their ids, which programs may rely on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

ERROR, WARNING, INFO = "error", "warning", "info"
WHOLE, DAMAGED, INCOMPLETE = "whole", "damaged", "incomplete"
EXPORT_ONLY, NOT_DEEPSPEED = "export only", "not a DeepSpeed checkpoint"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an id stands for: its severity, the verdict that it leads to (errors only), and one line for people."""

    severity: str
    verdict: str
    text: str


def _error(verdict: str, text: str) -> Meaning:
    return Meaning(ERROR, verdict, text)


#: Every finding id. Ids stay; new ones may come.
CATALOGUE: dict[str, Meaning] = {
    "folder.no-tag": _error(NOT_DEEPSPEED, "the folder holds no tag"),
    "folder.export": _error(EXPORT_ONLY, "weights in a form for inference, no training state"),
    "tag.absent": _error(INCOMPLETE, "the tag that was asked for is not there"),
    "tag.export": _error(EXPORT_ONLY, "the tag holds weights and no training state was ever part of it"),
    "latest.absent": Meaning(WARNING, "", "there are tags, and no `latest` names one"),
    "latest.wrong": _error("", "`latest` is unreadable, is no tag, or names a tag that is not there"),
    "latest.not-whole": _error("", "`latest` names a tag that is not whole"),
    "latest.behind": Meaning(INFO, "", "a newer tag than the one in `latest` is whole"),
    "file.missing": _error(INCOMPLETE, "a file that this layout needs is not there"),
    "file.elsewhere": _error(INCOMPLETE, "a file that this layout needs lies in another folder"),
    "file.empty": _error(DAMAGED, "0 bytes"),
    "file.cut": _error(DAMAGED, "the end of the file is not there"),
    "file.over-long": _error(DAMAGED, "bytes follow the end of the file"),
    "file.not-torch": _error(DAMAGED, "no file that torch.save writes"),
    "file.legacy": _error(DAMAGED, "a broken file in torch's older format"),
    "file.index": _error(DAMAGED, "the zip index, or what lies between the records, is broken"),
    "file.hostile": _error(DAMAGED, "made to harm its reader"),
    "file.pickle": _error(DAMAGED, "the object tree is broken"),
    "file.tensor": _error(DAMAGED, "a tensor lies outside its record"),
    "file.limit": _error(DAMAGED, "takes more to read than dspatch allows a file"),
    "file.unreadable": _error(DAMAGED, "cannot be opened or read"),
    "file.content": _error(DAMAGED, "readable, and not what its name says"),
    "file.crc": _error(DAMAGED, "bytes were changed after they were written"),
    "file.other-name": _error(DAMAGED, "a file has the name of one rank, layer or expert and was saved under that of another"),
    "file.renamed": Meaning(INFO, "", "weights of one layer or expert were saved under the name of another"),
    "file.duplicate": Meaning(WARNING, "", "two files for the same rank"),
    "file.stale": Meaning(WARNING, "", "a file with a DeepSpeed name that this layout does not have"),
    "file.foreign": Meaning(INFO, "", "files that DeepSpeed did not write"),
    "file.link": Meaning(INFO, "", "a link that leads out of the tag folder"),
    "pickle.dangerous": _error(DAMAGED, "unpickling the file would call into the system or the interpreter"),
    "pickle.unknown": Meaning(INFO, "", "the file needs classes beyond torch, numpy and DeepSpeed"),
    "shard.other-rank": _error(DAMAGED, "a shard has the name of one rank and the content of another"),
    "shard.other-model": _error(DAMAGED, "a shard does not fit the parameters of the model file"),
    "shard.twin": _error(DAMAGED, "two ranks' shards hold the same state"),
    "shard.other-save": _error(DAMAGED, "the masters of a shard do not give the weights of the model file"),
    "mixed.release": _error(DAMAGED, "files of one tag were written by different DeepSpeed releases"),
    "mixed.stage": _error(DAMAGED, "files of one tag are of different ZeRO stages"),
    "mixed.steps": _error(DAMAGED, "files of one tag are of different steps"),
    "mixed.world": _error(DAMAGED, "files of one tag are of different world sizes"),
    "mixed.save": _error(DAMAGED, "files of one tag disagree on what is the same on all ranks"),
    "state.missing": _error(INCOMPLETE, "state that a resume needs is in no file"),
    "state.shape": _error(DAMAGED, "optimizer state of another size than its parameters"),
    "counters.missing": _error(INCOMPLETE, "counters that a resume needs are in no file"),
    "counters.step": Meaning(INFO, "", "the engine and the optimizer count different steps"),
    "scheduler.missing": _error(INCOMPLETE, "a scheduler was configured, and its state is in no file"),
    "weights.missing": _error(INCOMPLETE, "parameters are listed, and their weights are in no file"),
    "universal.missing": _error(INCOMPLETE, "a parameter of a universal checkpoint lacks files that others have"),
    "universal.shape": _error(
        DAMAGED, "a parameter of a universal checkpoint has another shape than the model file says"
    ),
    "fault.A4": _error(INCOMPLETE, "stage 0 in bf16: the release that wrote it saved no optimizer state"),
    "fault.A5": _error(INCOMPLETE, "stage 1 in bf16 with fp32 accumulation: no optimizer state was saved"),
    "fault.C14": Meaning(WARNING, "", "round_robin_gradients: a universal conversion scrambles the weights"),
    "fault.F3": _error(DAMAGED, "client_state was laid over DeepSpeed's own keys"),
    "fault.F7": Meaning(WARNING, "", "elastic_checkpoint: hyperparameters are in no file"),
    "fault.F8": _error(DAMAGED, "elastic_checkpoint: the optimizer step became a vector"),
    "fault.G10": _error(INCOMPLETE, "Twin-Flow: state of the sub-groups on the accelerator was not saved"),
    "fault.G11": _error(INCOMPLETE, "SuperOffload: optimizer state was not saved"),
    "fault.G12": _error(INCOMPLETE, "ZenFlow: state of the selected columns was not saved"),
    "values.not-finite": _error(DAMAGED, "moments or masters are NaN or infinite"),
    "moments.all-zero": _error(DAMAGED, "all moments are zero though steps were taken"),
    "moments.zero": Meaning(INFO, "", "the moments of one shard are all zero, those of others are not"),
    "deep.no-checksum": Meaning(INFO, "", "files in torch's older format carry no checksums"),
    "deep.not-covered": Meaning(WARNING, "", "the deep check was stopped before it had read everything"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong or noteworthy.

    Attributes:
        id: a key of ``CATALOGUE``.
        text: one sentence.
        tag: empty for what concerns the folder.
        file: relative to the tag's folder; empty when it concerns no single file.
        rank: data-parallel rank; None when it concerns no single one.
        expected, found: what should be and what is; may be empty.
        do: the command or step that helps; may be empty.
        fault: id in the fault catalogue of DeepSpeed, such as ``A4``; empty for none.
    """

    id: str
    text: str
    tag: str = ""
    file: str = ""
    rank: int | None = None
    expected: str = ""
    found: str = ""
    do: str = ""
    fault: str = ""

    @property
    def severity(self) -> str:
        """``error``, ``warning`` or ``info``."""
        return CATALOGUE[self.id].severity

    def as_json(self) -> dict[str, Any]:
        """As plain data; every field is there."""
        return {
            "id": self.id, "severity": self.severity, "text": self.text, "tag": self.tag, "file": self.file,
            "rank": self.rank, "expected": self.expected, "found": self.found, "do": self.do, "fault": self.fault,
        }  # fmt: skip


def worst(findings: Iterable[Finding]) -> str:
    """The verdict that findings lead to: damage counts more than absence; ``whole`` without an error."""
    verdicts = {CATALOGUE[one.id].verdict for one in findings if one.severity == ERROR}
    for verdict in (NOT_DEEPSPEED, DAMAGED, INCOMPLETE, EXPORT_ONLY):
        if verdict in verdicts:
            return verdict
    return WHOLE


def is_problem(findings: Iterable[Finding]) -> bool:
    """Whether the exit code says that a problem was found."""
    return any(one.severity in (ERROR, WARNING) for one in findings)
