"""Two tags against each other: every tensor byte by byte, every value, and what the two tags are to each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspatch.checkpoint.content import CHUNK, check_record, read_bytes
from dspatch.checkpoint.damage import Damaged
from dspatch.diff import numbers
from dspatch.diff.fragments import RANK, Key, Named, State, spans
from dspatch.diff.relation import Relation, relation

EQUAL, DIFFERS, ONLY_A, ONLY_B, NOT_COMPARED = "equal", "differs", "only in A", "only in B", "not compared"
RENAMED, RESHAPED, RETYPED = "renamed", "reshaped", "other dtype"

#: Components made of tensors, in the order in which they are shown.
TENSORS = ("weights", "frozen", "buffers", "experts", "masters", "moments")
#: Components made of numbers and texts.
VALUES = ("optimizer_step", "param_groups", "loss_scaler", "lr_scheduler", "counters", "data_sampler", "random_ltd",
          "client_state")  # fmt: skip

#: Elements that are read of both sides at once: equal ones in as few calls as possible, the sums of others in the cache.
_ELEMENTS = CHUNK // 16

#: Pairs that a renamed parameter is looked for among, for each name that only one side has.
_CANDIDATES = 16

Progress = Callable[[int, int], object]


@dataclass(slots=True)
class Parameter:
    """One tensor of both sides.

    Attributes:
        component: such as ``masters``. kind: state name of a moment, else empty. name: of the parameter, in A where it is
        there. outcome: one of the words above. shapes, dtypes: in A and B; None on the side that has it not. apart: what
        was measured; None where nothing was. note: more about the outcome; for ``renamed``
        the name in B.
    """

    component: str
    kind: str
    name: str
    outcome: str
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None]
    dtypes: tuple[str | None, str | None]
    apart: numbers.Apart | None = None
    note: str = ""

    @property
    def elements(self) -> int:
        """Elements of the tensor."""
        shape = self.shapes[0] if self.shapes[0] is not None else self.shapes[1]
        return math.prod(shape or ())


@dataclass(slots=True)
class Value:
    """A number or text that differs: its path of keys, and what both sides hold (None: nothing, or None)."""

    component: str
    key: str
    a: Any
    b: Any


@dataclass(slots=True)
class Component:
    """One component of both sides: its outcome, why it was not compared, and its tensors or differing values."""

    name: str
    outcome: str
    reason: str = ""
    parameters: list[Parameter] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)


@dataclass(slots=True)
class Difference:
    """The result.

    Attributes:
        a, b: both tags.
        components: those that either side holds, in order.
        relation: what B is to A.
        damage: what is wrong with the files of either: unreadable, not there, of another rank, bytes that do not fit their
            checksums.
    """

    a: State
    b: State
    components: list[Component]
    relation: Relation
    damage: list[str]

    @property
    def parameters(self) -> list[Parameter]:
        """All tensors that are not equal."""
        return [one for component in self.components for one in component.parameters if one.outcome != EQUAL]


def compare(a: State, b: State, only: Iterable[str] = (), progress: Progress | None = None) -> Difference:
    """Compare two tags.

    Args:
        a, b: both.
        only: components; empty: all.
        progress: called with bytes compared and bytes in all, of one side.
    """
    made = _Comparison(a, b, progress)
    wanted = tuple(only) or (*TENSORS, *VALUES)
    found = [made.tensors(name) for name in TENSORS if name in wanted]
    found += [made.values(name) for name in VALUES if name in wanted]
    components = [one for one in found if one is not None]
    damage = [*made.damage, *_unreadable(a, "A"), *_unreadable(b, "B")]
    return Difference(a, b, components, relation(a, b, components, damage), damage)


def _unreadable(state: State, label: str) -> list[str]:
    kinds = ("file.", "shard.", "mixed.", "pickle.", "universal.")
    return [
        f"{label}: {one.text}" for one in state.judged.findings if one.id.startswith(kinds) and one.severity == "error"
    ]


class _Comparison:
    def __init__(self, a: State, b: State, progress: Progress | None) -> None:
        self._states = (a, b)
        self._progress = progress
        self.damage: list[str] = []
        self._checked: set[tuple[str, str]] = set()
        frozen = a.frozen | b.frozen
        self._sides = [{_key(key, frozen): named for key, named in state.tensors.items()} for state in self._states]
        self._done = 0
        self._total = sum(one.numel * _itemsize(one) for key, one in self._sides[0].items() if key in self._sides[1])

    def tensors(self, component: str) -> Component | None:
        """One component of tensors; None when neither side has it."""
        a, b = ({key: one for key, one in side.items() if key[0] == component} for side in self._sides)
        lost = "; ".join(f"{label}: {state.lost[component]}" for label, state in zip("AB", self._states, strict=True)
                         if component in state.lost)  # fmt: skip
        if not a and not b:
            return Component(component, NOT_COMPARED, lost) if lost else None
        if not a or not b:
            side = self._states[1 if a else 0]
            why = lost or side.absent.get(component, "")
            label = "B" if a else "A"
            if why:
                return Component(component, NOT_COMPARED, why if lost else f"{label}: {why}")
            outcome = ONLY_A if a else ONLY_B
            alone = a or b
            return Component(
                component, outcome, f"{label} holds none", [_alone(key, one, outcome) for key, one in alone.items()]
            )
        found, reason = list(self._pairs(a, b)), lost
        if any(one.outcome == NOT_COMPARED for one in found) and not reason:
            reason = next(one.note for one in found if one.outcome == NOT_COMPARED)
        outcomes = {one.outcome for one in found}
        outcome = EQUAL if outcomes == {EQUAL} and not lost else DIFFERS
        if outcomes <= {EQUAL, NOT_COMPARED} and (NOT_COMPARED in outcomes or lost):
            outcome = NOT_COMPARED
        return Component(component, outcome, reason, found)

    def _pairs(self, a: dict[Key, Named], b: dict[Key, Named]) -> Iterator[Parameter]:
        cut = self._cut_otherwise(a, b)
        if cut:
            why = "it is cut over another number of model-parallel ranks"
            yield from (
                _alone(key, one, NOT_COMPARED, why) for side in (a, b) for key, one in side.items() if key in cut
            )
            a, b = ({key: one for key, one in side.items() if key not in cut} for side in (a, b))
        alone = ([key for key in a if key not in b], [key for key in b if key not in a])
        raw = [key for key in alone[0] if a[key].raw] + [key for key in alone[1] if b[key].raw]
        mixed = bool(raw) and any(one.raw for one in a.values()) != any(one.raw for one in b.values())
        for key, one in a.items():
            if key in b:
                yield self._pair(key, one, b[key])
        if raw:
            # State without names on one side leaves the names of the other side without a partner, and the reverse.
            why = "its parameter is not told by the file" if mixed else "it has a place in another layout only"
            yield from (_alone(key, (a if key in a else b)[key], NOT_COMPARED, why) for keys in alone for key in keys)
            return
        yield from self._renamed(alone, a, b)

    def _cut_otherwise(self, a: dict[Key, Named], b: dict[Key, Named]) -> set[Key]:
        """Parameters that one side has in slices of model-parallel ranks, and the other in other slices or as a whole."""
        other_slices = self._states[0].judged.layout.mp != self._states[1].judged.layout.mp
        sliced = [{_whole(key) for key in side if _whole(key) != key} for side in (a, b)]
        there = [{_whole(key) for key in side} for side in (a, b)]
        cut = (sliced[0] | sliced[1]) if other_slices else sliced[0] ^ sliced[1]
        cut &= there[0] & there[1]
        return {key for side in (a, b) for key in side if _whole(key) in cut}

    def _renamed(
        self, alone: tuple[list[Key], list[Key]], a: dict[Key, Named], b: dict[Key, Named]
    ) -> Iterator[Parameter]:
        left = list(alone[1])
        for key in alone[0]:
            one = a[key]
            alike = [other for other in left if other[1] == key[1] and b[other].shape == one.shape and
                     b[other].dtype == one.dtype and one.complete and b[other].complete and one.numel]  # fmt: skip
            same = next((other for other in alike[:_CANDIDATES] if self._is_same(one, b[other])), None)
            # One element, or zeros alone, are the same by chance.
            if same is None or (one.numel < 2 or self._is_constant(one)):
                yield _alone(key, one, self._one_sided(0, key[0]), self._lost(1, key[0]))
                continue
            left.remove(same)
            yield Parameter(
                key[0], key[1], key[2], RENAMED, (one.shape, one.shape), (one.dtype, one.dtype), note=same[2]
            )
        for key in left:
            yield _alone(key, b[key], self._one_sided(1, key[0]), self._lost(0, key[0]))

    def _one_sided(self, side: int, component: str) -> str:
        if self._lost(1 - side, component):
            return NOT_COMPARED
        return (ONLY_A, ONLY_B)[side]

    def _lost(self, side: int, component: str) -> str:
        return self._states[side].lost.get(component, "")

    def _is_same(self, one: Named, other: Named) -> bool:
        try:
            return all(numbers.same(x, y) for x, y in self._read(one, other))
        except Damaged:
            return False

    def _is_constant(self, one: Named) -> bool:
        first: bytes | None = None
        size = _itemsize(one)
        for piece, _ in self._read(one, one):
            first = first or bytes(piece[:size])
            if bytes(piece) != first * (len(piece) // size):
                return False
        return True

    def _read(self, one: Named, other: Named) -> Iterator[tuple[memoryview, memoryview]]:
        for x, y in spans(one, other, _ELEMENTS):
            yield read_bytes(x.ref, x.at, x.count), read_bytes(y.ref, y.at, y.count)

    def _pair(self, key: Key, one: Named, other: Named) -> Parameter:
        made = Parameter(*key, EQUAL, (one.shape, other.shape), (one.dtype, other.dtype))
        if one.shape != other.shape:
            made.outcome = RESHAPED
            if one.numel == other.numel and one.dtype == other.dtype and self._is_same(one, other):
                made.note = "the same bytes in another shape"
            return made
        missing = [label for label, side in (("A", one), ("B", other)) if not side.complete]
        try:
            made.apart = self._measure(one, other)
        except Damaged as error:
            made.outcome, made.note = NOT_COMPARED, str(error)
            if str(error) not in self.damage:
                self.damage.append(str(error))
            return made
        if one.dtype != other.dtype:
            made.outcome = RETYPED
        elif made.apart.differing:
            made.outcome = DIFFERS
        if missing and made.outcome == EQUAL:
            why = [self._lost(at, key[0]) for at in (0, 1) if self._lost(at, key[0])]
            made.outcome = NOT_COMPARED
            made.note = f"{' and '.join(missing)}: parts of it are in no file" + (f" ({why[0]})" if why else "")
        if made.outcome == DIFFERS:
            self._check(one, "A")
            self._check(other, "B")
        return made

    def _measure(self, one: Named, other: Named) -> numbers.Apart:
        apart = numbers.Apart()
        alike, equal_so_far = one.dtype == other.dtype, True
        for x, y in spans(one, other, _ELEMENTS):
            left, right = read_bytes(x.ref, x.at, x.count), read_bytes(y.ref, y.at, y.count)
            self._done += len(left)
            if self._progress is not None:
                self._progress(self._done, max(self._total, self._done))
            if alike and equal_so_far and numbers.same(left, right):
                apart.elements += x.count
                continue
            if equal_so_far and apart.elements and alike:
                # Norms are those of the whole tensor, so what was equal so far counts, too.
                equal_so_far, apart = False, numbers.Apart()
                for before_x, before_y in spans(one, other, _ELEMENTS):
                    if before_x.start == x.start:
                        break
                    numbers.add(apart, read_bytes(before_x.ref, before_x.at, before_x.count),
                                read_bytes(before_y.ref, before_y.at, before_y.count), (one.dtype, other.dtype),
                                before_x.start)  # fmt: skip
            equal_so_far = False
            numbers.add(apart, left, right, (one.dtype, other.dtype), x.start)
        return apart

    def _check(self, named: Named, label: str) -> None:
        """Whether the bytes of what differs are those that were written: damage after the save is the first suspect."""
        for one in named.fragments:
            record = one.ref.record
            if (record.path, record.name) in self._checked:
                continue
            self._checked.add((record.path, record.name))
            try:
                check_record(record)
            except Damaged as error:
                self.damage.append(f"{label}: {Path(error.path).name} {error.why}")

    # --- values -------------------------------------------------------------------------------------------------------

    def values(self, component: str) -> Component | None:
        """One component of numbers and texts; None when neither side has it."""
        a, b = (_values(state, component) for state in self._states)
        if not a and not b:
            return None
        if not a or not b:
            if component == "loss_scaler":
                return None  # other precisions keep none
            lost = self._lost(1 if a else 0, component)
            if lost:
                return Component(component, NOT_COMPARED, f"{'B' if a else 'A'}: {lost}")
            return Component(component, ONLY_A if a else ONLY_B, f"{'B' if a else 'A'} holds none")
        if component == "loss_scaler":
            # Stage 0 writes fewer of its attributes.
            common = a.keys() & b.keys()
            a, b = ({key: one for key, one in side.items() if key in common} for side in (a, b))
        found = [Value(component, key, a.get(key), b.get(key)) for key in dict.fromkeys((*a, *b))
                 if not _alike(a.get(key), b.get(key)) or (key in a) != (key in b)]  # fmt: skip
        if component == "param_groups" and found and _as_set(a) == _as_set(b):
            found = []  # stage 3 may list a group once for each of its sub-groups
        return Component(component, DIFFERS if found else EQUAL, values=found)


def _values(state: State, component: str) -> dict[str, Any]:
    if component != "optimizer_step":
        return state.values.get(component, {})
    # At stage 0 in 16 bits a healthy Adam counts one step that made its state, before the first real one.
    return {"step": ", ".join(f"{step - state.ahead:g}" for step in state.steps)} if state.steps else {}


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _as_set(values: dict[str, Any]) -> set[tuple[tuple[str, str], ...]]:
    groups: dict[str, list[tuple[str, str]]] = {}
    for key, value in values.items():
        number, _, rest = key.partition(".")
        groups.setdefault(number, []).append((rest, repr(value)))
    return {tuple(sorted(one)) for one in groups.values()}


def _alone(key: Key, named: Named, outcome: str, note: str = "") -> Parameter:
    in_a = outcome == ONLY_A
    shapes = (named.shape, None) if in_a else (None, named.shape)
    dtypes = (named.dtype, None) if in_a else (None, named.dtype)
    return Parameter(*key, outcome, shapes, dtypes, note=note)


def _key(key: Key, frozen: set[str]) -> Key:
    """Stage 0 does not say which weights are trained; the other side may."""
    return ("frozen", *key[1:]) if key[0] == "weights" and key[2] in frozen else key


def _whole(key: Key) -> Key:
    """The key without the model-parallel rank that a slice has behind its name."""
    return (*key[:2], key[2].partition(RANK)[0])


def _itemsize(named: Named) -> int:
    return named.fragments[0].ref.itemsize if named.fragments else 1


def by_name(found: Difference) -> dict[str, list[Parameter]]:
    """Parameters that differ -> their tensors that do."""
    listed: dict[str, list[Parameter]] = {}
    for one in found.parameters:
        if one.outcome != NOT_COMPARED:
            listed.setdefault(one.name, []).append(one)
    return listed
