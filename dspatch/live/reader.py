"""Which reader an engine needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dspatch.live import bf16, engine_state, fp16_fused, fp16_unfused, plain, zero3, zero12
from dspatch.live.attributes import class_names, flag, layout_of, rank_in, without_reader
from dspatch.live.nowhere import LOST, state_in_no_file
from dspatch.live.positions import numbered_groups, registered_names
from dspatch.live.reading import Reading

#: Components that live in the optimizer.
OPTIMIZER_COMPONENTS = ("masters", "moments", "optimizer_step", "param_groups", "loss_scaler")

#: Class of ``engine.optimizer`` -> family and reader; the first class of the MRO that is listed decides.
_FAMILIES: dict[str, tuple[str, Callable[[Reading, Any, Any], None]]] = {
    "DeepSpeedZeroOptimizer": ("ZeRO-1/2", zero12.read),
    "DeepSpeedZeroOptimizer_Stage3": ("ZeRO-3", zero3.read),
    "BF16_Optimizer": ("BF16", bf16.read),
    "FP16_Optimizer": ("FP16 fused", fp16_fused.read),
    "FP16_UnfusedOptimizer": ("FP16 unfused", fp16_unfused.read),
}

#: ``without_reader`` -> what to say of its components.
_NO_READER = {
    "universal checkpoint": "universal checkpoints have no reader yet",
    "pipeline": "pipeline checkpoints have no reader yet",
    "mixture of experts": "checkpoints with experts have no reader yet",
}


def read(engine: Any) -> Reading:
    """Read one rank's engine. Copies no tensor and joins no collective; safe between any two steps.

    Args:
        engine: a ``DeepSpeedEngine``.

    Returns:
        A reading. What cannot be compared is named in it with a reason; nothing is left out silently.
    """
    stage = _stage(engine)
    reading = Reading("unknown", stage, rank_in(None)[0])
    refused = _NO_READER.get(without_reader(engine), "")
    if refused:
        for component in ("weights", *OPTIMIZER_COMPONENTS):
            reading.not_checked[component] = refused
    else:
        _guarded(reading, ("weights",), lambda: engine_state.add_weights(reading, engine))
        _read_optimizer(reading, engine)
    _guarded(reading, ("counters",), lambda: engine_state.add_counters(reading, engine))
    _guarded(reading, ("lr_scheduler",), lambda: engine_state.add_scheduler(reading, engine))
    _guarded(reading, ("random_ltd", "data_sampler"), lambda: engine_state.add_data(reading, engine))
    if flag(engine, "has_moe_layers"):
        reading.not_checked["experts"] = "experts lie in files of their own, which dspatch does not compare yet"
    return reading


def _stage(engine: Any) -> int:
    stage = getattr(engine, "zero_optimization_stage", None)
    return int(stage()) if callable(stage) else 0


def _read_optimizer(reading: Reading, engine: Any) -> None:
    wrapper = getattr(engine, "optimizer", None)
    if wrapper is None:
        reading.family = "none"
        if reading.stage == 3:
            _no_shard_weights(reading)
        return
    names = class_names(wrapper)
    if "DeepSpeedZeRoOffload" in names:
        reading.family = "none"
        _no_shard_weights(reading)
        return
    family, reader = _family_of(wrapper)
    if reader is None:
        _not_readable(reading, f"unknown optimizer {type(wrapper).__name__}")
        return
    reading.family = family
    _guarded(reading, OPTIMIZER_COMPONENTS, lambda: reader(reading, engine, wrapper))
    if family in ("ZeRO-1/2", "ZeRO-3", "BF16"):
        reading.layout = layout_of(engine)
    elif family == "plain":
        reading.numbered, reading.registered = numbered_groups(engine), registered_names(engine)
    if (lost := state_in_no_file(engine)) is not None:
        reading.nowhere.update(dict.fromkeys(LOST, lost))


def _family_of(wrapper: Any) -> tuple[str, Callable[[Reading, Any, Any], None] | None]:
    for one in type(wrapper).__mro__:
        if one.__name__ == "MiCS_Optimizer":
            return "unknown", None
        if one.__name__ in _FAMILIES:
            return _FAMILIES[one.__name__]
    import torch

    if isinstance(wrapper, torch.optim.Optimizer):
        return "plain", plain.read
    return "unknown", None


def _no_shard_weights(reading: Reading) -> None:
    reading.not_checked["weights"] = "ZeRO-3 without an optimizer writes its weights to no file of the checkpoint"


def _not_readable(reading: Reading, reason: str) -> None:
    for component in OPTIMIZER_COMPONENTS:
        reading.not_checked[component] = reason
    if reading.stage == 3:
        reading.not_checked["weights"] = reason


def _guarded(reading: Reading, components: tuple[str, ...], step: Callable[[], None]) -> None:
    """Run a reader; when an engine does not look as expected, say so for its components instead of failing the load."""
    try:
        step()
    except Exception as error:
        for component in components:
            reason = f"the engine does not look as expected: {type(error).__name__}: {error}"
            reading.not_checked.setdefault(component, reason)
