"""The loss scale: an object of its own in ZeRO optimizers, attributes of the optimizer itself at stage 0."""

from __future__ import annotations

from typing import Any

from dspatch.live.reading import LiveValue, Path, Reading

#: Attributes of ``DynamicLossScaler`` and ``LossScaler`` that make the next steps what they are: those that steps change,
#: and those that were configured.
_MOVING = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
CONFIGURED = (
    "dynamic", "scale_factor", "scale_window", "min_scale", "delayed_shift", "consecutive_hysteresis",
    "raise_error_at_min_scale",
)  # fmt: skip

#: Keys of ``FP16_Optimizer.state_dict``; the attributes have the same names.
_OF_OPTIMIZER = (
    "dynamic_loss_scale", "cur_scale", "cur_iter", "last_overflow_iter", "scale_factor", "scale_window",
)  # fmt: skip


def add_scaler_object(reading: Reading, wrapper: Any, role: str, root: Path) -> None:
    """The pickled ``loss_scaler`` of ZeRO-1/2/3 and ``dynamic_loss_scale`` beside it."""
    scaler = getattr(wrapper, "loss_scaler", None)
    if scaler is None:
        return
    numbers = {name: getattr(scaler, name) for name in (*_MOVING, *CONFIGURED) if hasattr(scaler, name)}
    # A static scale comes from the configuration, and BF16_Optimizer, whose shards ZeRO-1 reads too, writes none.
    static = not getattr(scaler, "dynamic", True)
    reading.values.append(
        LiveValue("loss_scaler", "loss scale", role, (*root, "loss_scaler"), numbers, optional=static)
    )
    dynamic = getattr(wrapper, "dynamic_loss_scale", None)
    if dynamic is not None:
        path = (*root, "dynamic_loss_scale")
        reading.values.append(LiveValue("loss_scaler", "kind of loss scale", role, path, bool(dynamic), optional=True))


def scale_holder(wrapper: Any) -> Any:
    """What has the loss scale of stage 0 as attributes."""
    return getattr(wrapper, "loss_scale_config", wrapper)


def add_scaler_attributes(reading: Reading, wrapper: Any, role: str, root: Path) -> None:
    """The loss scale of stage 0: in ``loss_scale_config`` in newer releases, in the optimizer itself before.

    A bf16 optimizer writes none of the keys, so each of them is optional.
    """
    holder = scale_holder(wrapper)
    if not getattr(holder, "use_grad_scaling", getattr(wrapper, "use_grad_scaling", True)):
        return
    for name in _OF_OPTIMIZER:
        value = getattr(holder, name, None)
        if value is not None:
            reading.values.append(LiveValue("loss_scaler", name, role, (*root, name), value, optional=True))
