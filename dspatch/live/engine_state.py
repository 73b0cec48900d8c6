"""What an engine keeps outside its optimizer: weights, buffers, counters, scheduler, data sampling."""

from __future__ import annotations

from typing import Any

from dspatch.live.attributes import flag, plain_name
from dspatch.live.reading import Fragment, LiveTensor, LiveValue, Reading

_COUNTERS = ("global_steps", "global_samples", "skipped_steps")

#: ``DeepSpeedEngine._load_checkpoint`` does so for files of its oldest releases.
_SAMPLES = "the file has no global_samples: DeepSpeed took global_steps times the batch size of this run"


def add_weights(reading: Reading, engine: Any) -> None:
    """Parameters and buffers against ``module`` of the model file.

    At stage 3 the file has every parameter with no elements, so only buffers are added there; ``zero3`` adds the rest.
    """
    import torch

    trained = {plain_name(name): param.requires_grad for name, param in engine.module.named_parameters()}
    # As `DeepSpeedEngine.module_state_dict` does it, so that hooks which rename keys do so here as well.
    for name, value in engine.module.state_dict().items():
        if not isinstance(value, torch.Tensor):
            continue
        key = name.replace(".random_ltd_layer", "")
        if reading.stage == 3 and plain_name(name) in trained:
            continue
        size = int(value.numel())
        component = "weights" if trained.get(plain_name(name), True) else "frozen"
        fragments = (Fragment(plain_name(name), 0, size),)
        reading.tensors.append(LiveTensor(component, key, "model", ("module", key), value, size, fragments))


def add_counters(reading: Reading, engine: Any) -> None:
    """``global_steps``, ``global_samples`` and ``skipped_steps``."""
    for name in _COUNTERS:
        value = getattr(engine, name, None)
        if value is not None:
            computed = _SAMPLES if name == "global_samples" else ""
            reading.values.append(LiveValue("counters", name, "model", (name,), value, computed=computed))


def add_scheduler(reading: Reading, engine: Any) -> None:
    """The state dict of the scheduler that the engine steps."""
    scheduler = getattr(engine, "lr_scheduler", None)
    if scheduler is None:
        reading.no_place["lr_scheduler"] = ("model", ("lr_scheduler",))
    elif not hasattr(scheduler, "state_dict"):
        reading.not_checked["lr_scheduler"] = f"{type(scheduler).__name__} has no state_dict"
    else:
        value = scheduler.state_dict()
        reading.values.append(LiveValue("lr_scheduler", "scheduler", "model", ("lr_scheduler",), value))


def add_data(reading: Reading, engine: Any) -> None:
    """Random layer dropping and the curriculum's sampler, where they are on."""
    dropping = getattr(engine, "random_ltd_scheduler", None)
    if dropping is None or not flag(engine, "random_ltd_enabled"):
        reading.no_place["random_ltd"] = ("model", ("random_ltd",))
    else:
        value = dropping.state_dict()
        reading.values.append(LiveValue("random_ltd", "random-LTD scheduler", "model", ("random_ltd",), value))
    sampler = getattr(getattr(engine, "training_dataloader", None), "data_sampler", None)
    if sampler is None or not hasattr(sampler, "state_dict") or not flag(engine, "curriculum_learning_enabled"):
        reading.no_place["data_sampler"] = ("model", ("data_sampler",))
    else:
        value = sampler.state_dict()
        reading.values.append(LiveValue("data_sampler", "data sampler", "model", ("data_sampler",), value))
