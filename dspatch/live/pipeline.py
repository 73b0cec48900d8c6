"""Parameters of a pipeline that no checkpoint file has."""

from __future__ import annotations

from typing import Any

from dspatch.live.attributes import class_names


def unsaved(engine: Any) -> list[str]:
    """Names, on this rank. ``PipelineModule.save_state_dict`` writes what has a ``state_dict`` of its own.

    A tied module whose every use has a ``forward_fn`` is a partial function there, and parameters of the pipeline module
    itself belong to no layer.
    """
    module = engine.module
    if "PipelineModule" not in class_names(module):
        return []
    saved = {
        id(param) for layer in module.forward_funcs if hasattr(layer, "state_dict") for param in layer.parameters()
    }
    return [name for name, param in module.named_parameters() if id(param) not in saved]
