"""One sentence on an exception of DeepSpeed's that does not explain itself. The exception stays the object that it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dspatch.checkpoint import ways
from dspatch.live.attributes import class_names, flag

#: Said of faults that end with a release.
NEWER = "a newer DeepSpeed has it right"

#: G13, wherever it is met.
SEQUENCE_RANKS = "this DeepSpeed takes sequence-parallel ranks for model-parallel ones when it looks for files"


@dataclass(frozen=True, slots=True)
class _Known:
    """An exception that is told by its class, a part of its text, and what the engine is."""

    kind: str
    text: str
    fits: Callable[[Any, BaseException], bool]
    says: str


def _experts(engine: Any, error: BaseException) -> bool:
    return flag(engine, "has_moe_layers")


def _bf16(engine: Any, error: BaseException) -> bool:
    return "BF16_Optimizer" in class_names(engine.optimizer)


def _frozen(engine: Any, error: BaseException) -> bool:
    named = {name for name, param in engine.module.named_parameters() if not param.requires_grad}
    return bool(error.args) and error.args[0] in named


def _shares(engine: Any, error: BaseException) -> bool:
    return int(getattr(engine, "sequence_parallel_size", 1) or 1) > 1


def _always(engine: Any, error: BaseException) -> bool:
    return True


#: ``DeepSpeedEngine._load_checkpoint`` and what it calls, as their sources are; the first that fits is told.
_KNOWN = (
    _Known("AssertionError", "", lambda _, error: not str(error),
           "DeepSpeed found another number of model files than it expects (SDLoaderBase.check_ckpt_list): another number of "
           "ranks, stages or tensor-parallel parts saved this tag, or files of it are gone; `dspatch inspect` says which"),
    _Known("KeyError", "optimizer", _experts,
           "at stage 0 this DeepSpeed looks for the optimizer of an fp32 mixture of experts in the wrong file; "
           f"load_optimizer_states=False loads the weights, and {NEWER}"),
    _Known("KeyError", "0", _bf16,
           "at stage 0 this DeepSpeed hands a bf16 pipeline's optimizer the state of the model file, where it wants its "
           f"shards: use stage 1, or take the weights only: {ways.WEIGHTS_ONLY}"),
    _Known("KeyError", "", _frozen,
           "this parameter is frozen now and was trained in the run that saved, so the file has it nowhere among the frozen "
           "ones: freeze it after the load"),
    _Known("IndexError", "", lambda engine, error: _experts(engine, error) and _bf16(engine, error),
           "this DeepSpeed takes masters of experts from partitions of another group (BF16_Optimizer."
           f"_restore_from_bit16_weights): load with the optimizer states; {NEWER}"),
    _Known("ZeRORuntimeException", "DP world size", lambda engine, error: _experts(engine, error) and _shares(engine, error),
           "this DeepSpeed saves a mixture of experts with the number of data-parallel ranks alone, and compares it with that "
           f"of all ranks that share sequences, too: take the weights only: {ways.WEIGHTS_ONLY}; {NEWER} for its own files"),
    _Known("IndexError", "", _shares,
           f"{SEQUENCE_RANKS}; {NEWER}"),
    _Known("AttributeError", "_restore_from_bit16_weights", _always,
           "a ZeRO-3 engine without an optimizer has no masters to make: the patch no-masters lets it load its weights"),
    _Known("TypeError", "unexpected keyword argument 'load_serial'", _always,
           f"this DeepSpeed's optimizer does not take what its engine passes to it, so that no load can succeed: the patch "
           f"unknown-keyword-bf16 lets it load; {NEWER}"),
    _Known("TypeError", "unexpected keyword argument 'param_shapes'", _always,
           "this DeepSpeed's MiCS optimizer does not take what its engine passes to it: the patch unknown-keyword lets it load"),
    _Known("ValueError", "parameter group", _always,
           "the optimizer has other param groups than that of the run that saved: make the same ones, or take the weights "
           f"only: {ways.WEIGHTS_ONLY}"),
)  # fmt: skip


def sentence_for(error: BaseException, engine: Any) -> str:
    """What an exception of the load means, and the way out; empty for one that explains itself or is not known."""
    for one in _KNOWN:
        if type(error).__name__ == one.kind and one.text in str(error) and _fits(one, engine, error):
            return one.says
    return ""


def _fits(one: _Known, engine: Any, error: BaseException) -> bool:
    try:
        return one.fits(engine, error)
    except Exception:  # the engine is half-made; the exception itself is what must come out
        return False
