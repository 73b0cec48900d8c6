"""Masters and moments whose place in the flat partitions is another parameter's: refused before they are loaded.

DeepSpeed restores weights by name, masters and moments by position (``DeepSpeedZeroOptimizer._load_legacy_checkpoint``,
``DeepSpeedZeroOptimizer_Stage3._rigid_load_state_dict``). The model file lists the parameters of each flat group in
order (``param_shapes``); where the engine would write another list, every rank would restore right bytes into the wrong
place. Putting them right by name would need every other rank's shard at stages 1 and 2, so the load is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from dspatch.checkpoint import ways
from dspatch.checkpoint.shard import FileFacts, facts_of
from dspatch.checkpoint.unpickle import Tree
from dspatch.errors import explain, shorten
from dspatch.live.attributes import class_names, layout_of
from dspatch.live.positions import numbered_groups, registered_names
from dspatch.live.reading import GroupLayout
from dspatch.verdict.found import REFUSED, Refusal
from dspatch.verdict.layout import REGISTER, filed_layout, inferred_layout, misplaced

#: Optimizers that restore flat groups by position, and whose engines list the parameters in them.
FLAT = frozenset(("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3", "BF16_Optimizer"))

#: What a misplaced partition spoils; who declares both as lost may load it.
SPOILS = frozenset(("masters", "moments"))


def wrong_places(engine: Any, model: Tree, shard: Tree) -> Refusal | None:
    """A refusal when the flat groups of the file hold other parameters, or the same in other places."""
    flat = not FLAT.isdisjoint(class_names(engine.optimizer))
    refusal = _other_parameters(engine, model, layout_of(engine), filed_layout(model.get(("param_shapes",)))) if flat else None
    return refusal or _other_padding(engine, shard)


def wrong_numbers(engine: Any, model: Tree) -> Refusal | None:
    """The same at stage 0 in fp32, where the file numbers its parameters, and the order of its weights tells which they were."""
    optimizer = facts_of(model).optimizer
    if optimizer is None or optimizer.style != "torch":
        return None
    live = numbered_groups(engine)
    return _other_parameters(engine, model, live, inferred_layout(live, registered_names(engine), model.get(("module",))))


def _other_parameters(
    engine: Any, model: Tree, live: tuple[GroupLayout, ...] | None, filed: tuple[GroupLayout, ...] | None
) -> Refusal | None:
    if live is None or not filed:
        return None
    moved = misplaced(live, filed)
    return Refusal(REFUSED, _explained(engine, facts_of(model), live, filed, moved), SPOILS) if moved else None


def _other_padding(engine: Any, shard: Tree) -> Refusal | None:
    """Padding between parameters, which newer releases can be told to write and older ones do not know."""
    filed = shard.get(("optimizer_state_dict", "param_alignment_paddings"))
    if not isinstance(filed, list) or not any(map(any, filed)):
        return None
    live = getattr(engine.optimizer, "round_robin_bit16_padding", None)
    if filed == live:
        return None
    padded = live is not None and any(map(any, live))
    return Refusal(
        REFUSED,
        explain(
            "the optimizer state has its parameters in other places: it was saved with padding between them",
            expected="other padding" if padded else "no padding between parameters",
            found=f"zero_optimization.parameter_alignment at the save, padding {filed[0][:5]} in the first group",
            where=shard.path,
            do=(
                "set zero_optimization.parameter_alignment as in the run that saved"
                if live is not None
                else "load with a release that knows zero_optimization.parameter_alignment, as the one that saved",
                f"or take the weights only: {ways.WEIGHTS_ONLY}",
            ),
        ),
        SPOILS,
    )


def _explained(
    engine: Any, model: FileFacts, live: tuple[GroupLayout, ...], filed: tuple[GroupLayout, ...],
    moved: list[tuple[str, str]],
) -> str:  # fmt: skip
    here, there = _elements(live), _elements(filed)
    added, gone = sorted(here.keys() - there.keys()), sorted(there.keys() - here.keys())
    other = sorted(name for name in here.keys() & there.keys() if here[name] != there[name])
    alike = not (added or gone or other)
    headline = (
        "the optimizer state lies in another order than this engine's parameters: each would get another one's masters "
        "and moments"
        if alike
        else "the optimizer state is that of other parameters than this engine trains: masters and moments would shift"
    )
    name, saved = moved[0]
    differing = (
        _named("trained here, without state in the file", added),
        _named("in the file, not trained here", gone),
        _named("of another shape", other),
    )
    return explain(
        headline,
        expected=f"the same parameters in the same groups and order as at the save ({len(live)} groups)",
        found="; ".join((f"where {name} lies here, the file has {saved}", *(text for text in differing if text))),
        where=f"{shorten(dict.fromkeys(one for one, _ in moved))}, by {model.path}",
        do=(_cure(engine, model, alike, len(filed) - len(live)), f"or take the weights only: {ways.WEIGHTS_ONLY}"),
    )


def _cure(engine: Any, model: FileFacts, alike: bool, groups: int) -> str:
    now = bool(getattr(getattr(engine, "optimizer", None), "round_robin_gradients", False))
    if alike and model.ds_config and now != model.round_robin:
        return f"set zero_optimization.round_robin_gradients to {str(model.round_robin).lower()}, as in the run that saved"
    if alike and groups:
        return "make the param groups of the run that saved, and at stage 3 use its sub_group_size"
    if alike:
        return REGISTER
    return "train the parameters of the run that saved, and change them after the load"


def _elements(groups: Iterable[GroupLayout]) -> dict[str, tuple[int, ...]]:
    return {name: shape for group in groups for name, shape in group if math.prod(shape)}


def _named(label: str, names: list[str]) -> str:
    return f"{label}: {shorten(names)}" if names else ""
