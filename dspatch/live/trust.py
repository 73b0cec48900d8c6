"""Letting torch read the few classes that DeepSpeed itself pickles into its files, for the length of one load.

torch 2.6 made ``weights_only=True`` the default of ``torch.load``; DeepSpeed releases from before that pass nothing, and
then cannot read their own optimizer shards (``TorchCheckpointEngine.load``; DeepSpeed issue 6950 and others).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

#: What ``DeepSpeedZeroOptimizer.state_dict``, ``DeepSpeedZeroOptimizer_Stage3.state_dict`` and ``BF16_Optimizer.state_dict``
#: put into a shard besides tensors and plain containers.
OWN_CLASSES = (
    ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
    ("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"),
    ("deepspeed.runtime.zero.config", "ZeroStageEnum"),
    ("deepspeed.utils.tensor_fragment", "fragment_address"),
)


@contextmanager
def own_classes() -> Iterator[None]:
    """Inside the block ``torch.load(..., weights_only=True)`` takes ``OWN_CLASSES``, and nothing else that is new."""
    import torch

    safe_globals = getattr(torch.serialization, "safe_globals", None)
    if safe_globals is None:  # a torch that old has no such default to widen
        yield
        return
    with safe_globals([found for found in map(_imported, OWN_CLASSES) if found is not None]):
        yield


def advice(error: BaseException, names: Iterable[tuple[str, str]]) -> str:
    """One sentence on a load that ``weights_only`` refused; empty for any other error.

    Args:
        error: what the load raised.
        names: (module, name) of what the file's pickle names.
    """
    if not (isinstance(error, pickle.UnpicklingError) and "weights_only" in str(error)):
        return ""
    refused = [f"{module}.{name}" for module, name in names if f"{module}.{name}" in str(error)]
    what = refused[0] if refused else "a class"
    own = any((module, name) in OWN_CLASSES for module, name in names if f"{module}.{name}" == what)
    if own:
        return (
            f"this torch reads no {what} unless it is told to, and this DeepSpeed writes one into every shard: "
            "DSPATCH_TRUST=deepspeed allows exactly DeepSpeed's own classes, for the length of the load"
        )
    return (
        f"this torch reads no {what} unless it is told to, and it is none of DeepSpeed's own classes: if you trust the "
        "file, call torch.serialization.add_safe_globals([...]) before the load"
    )


def _imported(place: tuple[str, str]) -> Any:
    try:
        return getattr(import_module(place[0]), place[1], None)
    except ImportError:
        return None
