"""The torch optimizer inside: state and hyperparameters, in the form in which ``Optimizer.state_dict`` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dspatch.live.attributes import class_names
from dspatch.live.reading import Fragment, LiveState, LiveValue, Path, Reading

#: ``params`` are positions, ``initial_lr`` belongs to torch's schedulers; ``step`` is its own component.
_NOT_HYPERPARAMETERS = frozenset({"params", "initial_lr", "step"})

#: 1-bit optimizers leave their error buffers out of what they load, by design.
COMPRESSED = ("OnebitAdam", "OnebitLamb", "ZeroOneAdam")

ELASTIC = "an elastic checkpoint holds no hyperparameters"


def add_state(
    reading: Reading,
    optimizer: Any,
    number: int,
    tensor: Any,
    role: str,
    root: Path,
    fragments: Sequence[Fragment],
    numel: int,
    label: str,
    other_paths: tuple[Path, ...] = (),
) -> None:
    """Add the state of one tensor.

    Args:
        reading: to add to.
        optimizer: the torch optimizer.
        number: the tensor's position over all param groups, which is its key in the state dict.
        tensor: the tensor that the optimizer steps.
        role: the file.
        root: where the state dict lies in the file.
        fragments: parameters inside the tensor.
        numel: elements that count.
        label: for messages.
        other_paths: other places where the file may hold this state.
    """
    state = optimizer.state
    entries = dict(state[tensor]) if tensor in state else {}
    paths = ((*root, "state", number), *other_paths)
    reading.states.append(LiveState(label, role, paths, entries, int(tensor.numel()), numel, tuple(fragments)))


def add_groups(reading: Reading, optimizer: Any, role: str, root: Path, missing: str = "") -> None:
    """Add the hyperparameters of every group, and ``step`` where an optimizer keeps it there."""
    for number, group in enumerate(optimizer.param_groups):
        path = (*root, "param_groups", number)
        hyper = {key: value for key, value in group.items() if key not in _NOT_HYPERPARAMETERS}
        reading.values.append(
            LiveValue("param_groups", f"group {number}", role, path, hyper, _NOT_HYPERPARAMETERS, missing)
        )
        if "step" in group:
            reading.values.append(
                LiveValue(
                    "optimizer_step", f"step of group {number}", role, (*path, "step"), group["step"], optional=True
                )
            )


def note_compressed(reading: Reading, optimizer: Any) -> None:
    """Say so when the optimizer drops a part of its state on every load, by design."""
    if not class_names(optimizer).isdisjoint(COMPRESSED):
        reading.not_checked["moments"] = f"{type(optimizer).__name__} drops its compression errors on load, by design"
