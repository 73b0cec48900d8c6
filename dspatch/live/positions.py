"""Stage 0 in fp32: where the optimizer's state belongs. ``torch.optim.Optimizer.state_dict`` counts parameters through
the param groups and names none of them, and there are no masters that could be compared with the weights.
"""

from __future__ import annotations

from typing import Any

from dspatch.live.attributes import Names, plain_name
from dspatch.live.reading import GroupLayout


def numbered_groups(engine: Any) -> tuple[GroupLayout, ...]:
    """Name and shape of each parameter that a plain torch optimizer steps, in the order of its state."""
    names = Names(engine)
    return tuple(
        tuple((names.of(param), tuple(param.shape)) for param in group["params"])
        for group in engine.optimizer.param_groups
    )


def registered_names(engine: Any) -> tuple[str, ...]:
    """Names of the module's parameters and buffers, in the order in which the engine would write them; empty: not known."""
    try:
        written = engine.module.state_dict(keep_vars=True)
    except Exception:  # hooks of the caller's own, made for a moment that is not this one
        return ()
    return tuple(plain_name(str(name)) for name in written)
