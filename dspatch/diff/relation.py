"""What two tags are to each other: the same, a conversion, a later point of the same run, another run, another model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dspatch.diff.fragments import State

if TYPE_CHECKING:
    from dspatch.diff.compare import Component, Parameter

SAME, CONVERTED, LATER, EARLIER = "same", "converted", "later", "earlier"
CHANGED, OTHER_RUN, OTHER_MODEL, UNKNOWN = "changed", "other run", "other model", "unknown"

#: Correlation of two sets of matrices below which they are taken for unrelated: of one run they are near 1 for long, of two
#: runs near 0, give or take 1 / sqrt(elements).
_RELATED, _CHANCE = 0.2, 6.0
#: A matrix with fewer elements says nothing about its origin.
_SMALL = 32
#: Adam moves an element by its learning rate or so in a step, by 3.2 times that at most with the usual betas; what has moved
#: by so many times more was not moved by it alone.
_TIMES = 100.0


@dataclass(frozen=True, slots=True)
class Relation:
    """The answer.

    Attributes:
        word: one of the words above.
        answer: in a sentence or two.
        doubts: what speaks against it.
        steps: how many engine steps B is ahead of A; None when a side does not tell.
        correlation: of trained matrices, 0 to 1 for related ones; None when there was nothing to measure.
    """

    word: str
    answer: str
    doubts: list[str] = field(default_factory=list)
    steps: int | None = None
    correlation: float | None = None

    @property
    def exit_code(self) -> int:
        """0 equal, 1 differs, 3 could not look."""
        return 0 if self.word in (SAME, CONVERTED) else 3 if self.word == UNKNOWN else 1


def relation(a: State, b: State, components: Sequence[Component], damage: Sequence[str]) -> Relation:
    """What B is to A, by names, shapes, counters and values."""
    parameters = [one for component in components for one in component.parameters]
    steps = _ahead(a, b)
    kinship = _kinship(components)
    unequal = [one for one in components if one.outcome not in ("equal", "not compared")]
    if not unequal:
        return _without_difference(a, b, components, damage, steps, kinship)
    names = [one for one in parameters if one.outcome in ("only in A", "only in B", "renamed", "reshaped")
             and one.component in ("weights", "frozen", "masters", "experts")]  # fmt: skip
    if names:
        return Relation(OTHER_MODEL, _other_model(names), list(damage), steps, kinship)
    differing = sorted({one.name for one in parameters if one.outcome in ("differs", "other dtype")})
    total = len({one.name for one in parameters})
    where = f"{len(differing):,} of {total:,} parameters differ" if differing else "no parameter differs"
    parts = ", ".join(one.name for one in unequal)
    doubts = [*damage]
    if kinship is not None and not _is_kin(kinship, components):
        text = f"names and shapes are the same, and the values have nothing to do with each other (correlation {kinship:.2f})"
        return Relation(OTHER_RUN, f"B is of another run than A: {text}", doubts, steps, kinship)
    if not steps:
        counted = "at the same step" if steps == 0 else "and no counter says which one is later"
        said = "B is not A" if _form(a) == _form(b) else "B is no faithful conversion of A"
        return Relation(CHANGED, f"{said}: {where}, {counted} (components: {parts})", doubts, steps, kinship)
    doubts += _doubts(a, b, components, steps)
    word, first, second = (LATER, "B", "A") if steps > 0 else (EARLIER, "A", "B")
    count = f"{abs(steps):,} step{'s' if abs(steps) > 1 else ''}"
    text = f"{first} is {count} later than {second}, with the same names and shapes; {where}"
    if kinship is not None:
        text += f", correlation {kinship:.4f}"
    verdict = f"{first} is what {second} became" if not doubts else f"{first} may be what {second} became, with doubts"
    return Relation(word, f"{verdict}: {text}", doubts, steps, kinship)


def _without_difference(
    a: State, b: State, components: Sequence[Component], damage: Sequence[str], steps: int | None, kinship: float | None
) -> Relation:
    compared = [one.name for one in components if one.outcome == "equal"]
    lost = [f"{one.name} ({one.reason})" for one in components if one.outcome == "not compared"]
    tensors = [name for name in compared if name in ("weights", "masters", "moments", "experts", "frozen")]
    # What a healthy layout does not hold is no gap; what both sides hold and could not be compared is one.
    blocked = [one for one in components if one.name in a.lost or one.name in b.lost or (
        one.outcome == "not compared" and one.name not in a.absent and one.name not in b.absent)]  # fmt: skip
    if not tensors or blocked:
        why = "; ".join(lost) or "there is nothing that both sides hold"
        return Relation(UNKNOWN, f"whether B equals A cannot be told: {why}", list(damage), steps)
    rest = f"; not compared: {', '.join(lost)}" if lost else ""
    listed = ", ".join(compared)
    if _form(a) != _form(b):
        text = f"a faithful conversion, the same state in another layout, bit for bit: {listed}{rest}"
        return Relation(CONVERTED, text, list(damage), steps, kinship)
    return Relation(SAME, f"A and B are the same, bit for bit: {listed}{rest}", list(damage), steps, kinship)


def _form(state: State) -> tuple[Any, ...]:
    laid = state.judged.layout
    return laid.stage, laid.dp, laid.mp, laid.universal


def _other_model(names: Sequence[Parameter]) -> str:
    said = []
    for word in ("renamed", "reshaped", "only in A", "only in B"):
        found = sorted(
            {one.name if word != "renamed" else f"{one.name} -> {one.note}" for one in names if one.outcome == word}
        )
        if found:
            shown = ", ".join(found[:5]) + (f" and {len(found) - 5:,} more" if len(found) > 5 else "")
            said.append(f"{word}: {shown}")
    return f"A and B do not have the same parameters ({'; '.join(said)})"


def _ahead(a: State, b: State) -> int | None:
    first, second = (state.values.get("counters", {}).get("global_steps") for state in (a, b))
    return second - first if type(first) is int and type(second) is int else None


def _trained(components: Sequence[Component]) -> list[Parameter]:
    """Matrices of the masters, or of the weights where there are no masters to compare."""
    for name in ("masters", "weights", "experts"):
        found = [one for component in components if component.name == name for one in component.parameters
                 if one.outcome in ("equal", "differs", "other dtype") and one.elements >= _SMALL]  # fmt: skip
        found = [one for one in found if len(one.shapes[0] or ()) != 1] or found
        if found:
            return found
    return []


def _kinship(components: Sequence[Component]) -> float | None:
    """Correlation of the trained matrices, each around its own mean; equal ones count as 1."""
    weight = total = 0.0
    for one in _trained(components):
        if one.outcome == "equal" or one.apart is None:
            share = 1.0
        else:
            first, second, both = one.apart.spreads
            if not first or not second:
                continue
            share = both / math.sqrt(first * second)
        total += one.elements * share
        weight += one.elements
    return total / weight if weight else None


def _is_kin(kinship: float, components: Sequence[Component]) -> bool:
    elements = sum(one.elements for one in _trained(components))
    return kinship > max(_RELATED, min(0.9, _CHANCE / math.sqrt(elements)))


def _doubts(a: State, b: State, components: Sequence[Component], steps: int) -> list[str]:
    found = []
    early, late = (a, b) if steps > 0 else (b, a)
    skipped = [state.values.get("counters", {}).get("skipped_steps") or 0 for state in (early, late)]
    engine = abs(steps) - (skipped[1] - skipped[0])
    if len(early.steps) == 1 and len(late.steps) == 1:
        taken = (late.steps[0] - late.ahead) - (early.steps[0] - early.ahead)
        if taken != engine:
            found.append(f"the optimizer counts {taken:g} steps in between, the engine {engine:,}: its state began anew, or is "
                         "of another point")  # fmt: skip
    by_name = {one.name: one for one in components}
    frozen = by_name.get("frozen")
    if frozen is not None and frozen.outcome == "differs":
        names = [one.name for one in frozen.parameters if one.outcome != "equal"]
        found.append(f"parameters that are not trained have changed ({', '.join(names[:5])})")
    moved = by_name.get("masters") or by_name.get("weights")
    if moved is not None and moved.outcome == "equal" and engine > 0:
        found.append(f"steps were taken, and no {moved.name} moved")
    bad = sorted({one.name for component in components for one in component.parameters if one.apart is not None
                  and one.apart.not_finite[1 if steps > 0 else 0] > one.apart.not_finite[0 if steps > 0 else 1]})  # fmt: skip
    if bad:
        found.append(f"values became NaN or infinite ({', '.join(bad[:5])})")
    found += _far(a, b, components, max(engine, 1))
    return found


def _far(a: State, b: State, components: Sequence[Component], steps: int) -> list[str]:
    rates = [float(value) for state in (a, b) for key, value in state.values.get("param_groups", {}).items()
             if key.rsplit(".", 1)[-1] in ("lr", "initial_lr", "max_lr") and isinstance(value, int | float)]  # fmt: skip
    rates += [float(value) for state in (a, b) for key, value in state.values.get("lr_scheduler", {}).items()
              if "lr" in key and isinstance(value, int | float) and not isinstance(value, bool)]  # fmt: skip
    adam = any(key.endswith(("betas.0", "betas.1")) for key in a.values.get("param_groups", {}))
    most = max(rates, default=0.0) * steps * _TIMES
    if not adam or most <= 0:
        return []
    far = [one for component in components if component.name == "masters" for one in component.parameters
           if one.apart is not None and (one.apart.largest or 0.0) > most]  # fmt: skip
    return [f"{one.name} moved by {one.apart.largest:.3g} at element {one.apart.at:,}, which {steps:,} steps of Adam at its "
            "learning rate do not explain" for one in far[:5] if one.apart is not None]  # fmt: skip
