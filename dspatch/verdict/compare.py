"""Live state against the files of a tag: one piece of code for all optimizer families.

Nothing here talks to other ranks, and nothing is changed. Tensors that the caller did not ask for are compared too: when they
differ their outcome is ``left out``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from dspatch.checkpoint.tensors import TensorRef
from dspatch.checkpoint.unpickle import Tree
from dspatch.live.attributes import plain_name
from dspatch.live.reading import LivePair, LiveState, LiveTensor, LiveValue, Reading
from dspatch.verdict import layout, pairs, values
from dspatch.verdict.collector import Collector
from dspatch.verdict.memory import crc_of_runs, default_threads
from dspatch.verdict.outcome import ABSENT, FRESH, LEFT_OUT, MISMATCH, NOT_CHECKED, RESTORED, Finding, Outcome
from dspatch.verdict.tensors import (
    Check,
    checksum_candidate,
    compare_directly,
    dtype_of,
    is_zero,
    number_in,
    wrong_size,
)

#: How much is measured: every byte by checksum where that is possible, every byte against the file, all but bytes, nothing.
LEVELS = ("full", "bytes", "structure", "off")

#: Components whose bytes a structure check leaves alone.
_OF_BYTES = ("weights", "frozen", "masters", "moments")

_STRUCTURE_ONLY = "DSPATCH_VERIFY=structure compares no bytes"
_SAME_AS_FILE = "the same as in the file"
_HOLDS_NONE = "the checkpoint holds none"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One rank's answer.

    Attributes:
        outcomes: component -> what became of it; components that neither the engine nor the files have are not in it.
        findings: what is wrong or noteworthy, worst first, merged so that there are few.
        bytes_compared: bytes of live tensors that were compared with files.
    """

    outcomes: dict[str, Outcome]
    findings: list[Finding]
    bytes_compared: int


def compare(
    reading: Reading,
    files: Mapping[str, Tree],
    *,
    level: str = "full",
    asked: frozenset[str],
    threads: int = 0,
) -> Comparison:
    """Compare one rank's reading with its files.

    Args:
        reading: from ``live.read``.
        files: ``"model"`` and ``"shard"`` -> tree of this rank's file; without a file its components are ``not checked``.
        level: one of ``LEVELS``.
        asked: components that the caller asked for.
        threads: for checksums; 0: at most 4, and no more than this rank's share of the cores.

    Raises:
        ValueError: no such level.
        Damaged: a file cannot be read.
    """
    if level not in LEVELS:
        raise ValueError(f"level is one of {', '.join(LEVELS)}, not {level!r}")
    run = _Run(reading, files, level, asked, threads or default_threads())
    if level != "off":
        run.all()
    return run.result()


class _Run:
    """The comparison of one rank, step by step."""

    def __init__(
        self, reading: Reading, files: Mapping[str, Tree], level: str, asked: frozenset[str], threads: int
    ) -> None:
        self._reading, self._files, self._level, self._asked, self._threads = reading, files, level, asked, threads
        self._notes = Collector(files, asked, reading.rank)
        self._checks: list[Check] = []
        self._bytes = 0

    def all(self) -> None:
        for tensor in self._reading.tensors:
            self._tensor(tensor)
        for state in self._reading.states:
            self._state(state)
        for value in self._reading.values:
            self._value(value)
        self._layout()
        self._settle()
        self._weights_by_name()
        self._pairs()
        self._rest()

    def result(self) -> Comparison:
        if self._level == "off":
            listed = {*self._asked, *self._reading.not_checked}
            return Comparison({one: Outcome(NOT_CHECKED, "verification is off") for one in sorted(listed)}, [], 0)
        return Comparison(self._notes.outcomes(), self._notes.findings(), self._bytes)

    # -- what the file has for each live thing -----------------------------------------------------------------------

    def _tree(self, component: str, role: str) -> Tree | None:
        tree = self._files.get(role)
        if tree is None:
            self._notes.unknown(component, f"its {role} file was not read")
        return tree

    def _tensor(self, live: LiveTensor) -> None:
        tree = self._tree(live.component, live.role)
        if tree is None:
            return
        ref = tree.get(live.path)
        names = [one.name for one in live.fragments] or [live.label]
        if not isinstance(ref, TensorRef):
            if live.path[0] == "module" and isinstance(tree.get(("module",)), dict):
                return  # `_weights_by_name` judges names that only one side has
            if live.missing:
                self._notes.unknown(live.component, live.missing)
            else:
                self._absent(live.component, names, live.role)
            return
        fragments, numel = live.fragments, live.numel
        self._add(Check(live.component, live.label, live.component, live.role, live.tensor, numel, fragments, ref))

    def _state(self, live: LiveState) -> None:
        tree = self._files.get(live.role)
        if tree is None:
            for component in ("moments", "optimizer_step"):
                self._notes.unknown(component, f"its {live.role} file was not read")
            return
        filed = self._filed_state(tree, live)
        names = [one.name for one in live.fragments] or [live.label]
        if filed is None:
            for component in ("moments", "optimizer_step"):
                self._absent(component, names, live.role)
            return
        # An optimizer without state (SGD without momentum, a run before its first step) is restored when it has none.
        self._notes.fine("moments")
        self._notes.fine("optimizer_step")
        for key in dict.fromkeys((*filed, *live.entries)):
            self._entry(live, str(key), live.entries.get(key), filed.get(key), names)

    @staticmethod
    def _filed_state(tree: Tree, live: LiveState) -> dict[Any, Any] | None:
        for path in live.paths:
            found = tree.get(path)
            if isinstance(found, dict):
                return found
            parent = tree.get(path[:-1])
            if isinstance(parent, dict) and path[-2] == "state":
                return {}
        return None

    def _entry(self, live: LiveState, key: str, here: Any, there: Any, names: list[str]) -> None:
        tensors = [one for one in (here, there) if _is_array(one)]
        component = "moments" if tensors and key != "step" else "optimizer_step"
        if here is None and there is None:
            return
        if here is None:
            self._notes.note(component, FRESH, key, names, f"{key}, as in the file", f"no {key}", live.role)
        elif there is None:
            if not _is_empty(here):
                found = f"{key}, which the file does not hold"
                self._notes.note(component, MISMATCH, f"extra {key}", names, f"no {key}", found, live.role)
        elif _is_array(here) and isinstance(there, TensorRef) and there.shape:
            whole = int(here.numel()) == live.size
            fragments = live.fragments if whole else ()
            numel = min(live.numel, there.numel) if whole and there.numel >= live.numel else int(here.numel())
            self._add(Check(component, live.label, key, live.role, here, numel, fragments, there))
        else:
            self._number(component, key, here, there, names, live.role)

    def _number(self, component: str, key: str, here: Any, there: Any, names: list[str], role: str) -> None:
        found = list(values.differences(here, there))
        if not found:
            self._notes.fine(component)
            return
        word = FRESH if values.is_nothing(here) else MISMATCH
        _, live, filed = found[0]
        self._notes.note(component, word, key, names, f"{key} {filed!r}, as in the file", f"{key} {live!r}", role)

    def _value(self, live: LiveValue) -> None:
        tree = self._tree(live.component, live.role)
        if tree is None:
            return
        filed = tree.get(live.path)
        if filed is None:
            if live.missing:
                # Only when the file has something else in its place; else it has nothing at all.
                whole = tree.get(live.path[: -2 if len(live.path) > 2 else -1])
                if isinstance(whole, list):
                    self._notes.unknown(live.component, live.missing)
                    return
            if not live.optional:
                self._absent(live.component, [live.label], live.role)
            return
        found = list(values.differences(live.value, filed, live.ignore))
        if not found:
            self._notes.fine(live.component)
        for name, here, there in found:
            label = f"{live.label}.{name}" if name else live.label
            word = FRESH if live.component == "counters" and values.is_nothing(here) else MISMATCH
            expected, said = f"{label} {there!r}, as in the file", f"{label} {here!r}"
            self._notes.note(live.component, word, label, [label], _short(expected), _short(said), live.role)

    def _absent(self, component: str, names: Sequence[str], role: str) -> None:
        self._notes.note(
            component, ABSENT, component, names, f"{component} in the file", _HOLDS_NONE, role, reason=_HOLDS_NONE
        )

    # -- bytes -------------------------------------------------------------------------------------------------------

    def _add(self, check: Check) -> None:
        wrong = wrong_size(check)
        if wrong:
            names = [one.name for one in check.fragments] or [check.label]
            what = f"size of {check.what}"
            self._notes.note(check.component, MISMATCH, what, names, _SAME_AS_FILE, f"{what}: {wrong}", check.role)
            check.equal = False
            return
        self._checks.append(check)

    def _settle(self) -> None:
        """Answer all checks: by checksum, then directly."""
        if self._level == "structure":
            for component in {one.component for one in self._checks}:
                self._notes.unknown(component, _STRUCTURE_ONLY)
            return
        if self._level == "full":
            self._by_checksum()
        left = [one for one in self._checks if one.equal is None]
        _in_threads(compare_directly, left, self._threads)
        for check in self._checks:
            self._bytes += check.nbytes
            self._conclude(check)

    def _by_checksum(self) -> None:
        runs: dict[tuple[int, int], Any] = {}
        wanted: list[tuple[Check, tuple[int, int]]] = []
        for check in self._checks:
            run = checksum_candidate(check)
            if run is not None:
                key = (int(run.data_ptr()), int(run.numel()))
                runs.setdefault(key, run)
                wanted.append((check, key))
        sums = dict(zip(runs, crc_of_runs(list(runs.values()), self._threads), strict=True))
        for check, key in wanted:
            if sums[key] == check.ref.record.crc32:
                check.equal = True

    def _conclude(self, check: Check) -> None:
        if check.equal:
            self._notes.fine(check.component)
            return
        word, found = MISMATCH, check.detail
        if check.component == "moments" and is_zero(check.tensor, check.fragments, check.numel):
            word, found = FRESH, f"{check.what} is zero, as in an optimizer that has not stepped"
        elif check.component == "masters" and self._rebuilt(check.differing):
            word, found = FRESH, f"masters made from the {self._low_precision()} weights, not those of the file"
        expected = f"{check.what} {_SAME_AS_FILE}"
        self._notes.note(check.component, word, check.what, check.differing, expected, found, check.role)

    def _rebuilt(self, names: Sequence[str]) -> bool:
        """Whether the masters of these parameters are their weights in a wider dtype."""
        wanted = set(names)
        related = [one for one in self._reading.pairs if one.component == "masters" and _names(one) & wanted]
        return bool(related) and all(pairs.is_rebuilt(one) for one in related)

    def _low_precision(self) -> str:
        return next((dtype_of(one.copy) for one in self._reading.pairs if one.component == "masters"), "low-precision")

    # -- names -------------------------------------------------------------------------------------------------------

    def _layout(self) -> None:
        tree = self._files.get("model")
        filed = layout.filed_layout(tree.get(("param_shapes",))) if tree is not None else None
        if self._reading.layout is None or filed is None:
            return
        moved = layout.misplaced(self._reading.layout, filed)
        if not moved:
            return
        here, there = moved[0]
        found = f"where {here} lies here, the file has {there}"
        expected = "parameters in the same groups and order as in the file"
        do = "build the model and its param groups in the order of the run that saved, with the same round_robin_gradients"
        components = ["masters", "moments"]
        if self._reading.stage == 3 and "masters" in self._asked:
            components.append("weights")
        for component in components:
            self._notes.note(component, MISMATCH, "layout", [one for one, _ in moved], expected, found, "model", do)

    def _weights_by_name(self) -> None:
        """Names that only the model or only the file has; DeepSpeed drops them silently when not strict."""
        tree = self._files.get("model")
        module = tree.get(("module",)) if tree is not None else None
        live = {one.path[1]: one for one in self._reading.tensors if one.role == "model" and one.path[0] == "module"}
        if not isinstance(module, dict) or not live:
            return
        lacking = [key for key in live if not isinstance(module.get(key), TensorRef)]
        for component in ("weights", "frozen"):
            gone = [key for key in lacking if live[key].component == component]
            word = ABSENT if 2 * len(lacking) > len(live) else LEFT_OUT
            if gone:
                found = "in the model, not in the checkpoint"
                self._notes.note(component, word, found, gone, "a value in the file", found, "model", reason=found)
        if self._reading.stage == 3:
            return
        extra = [key for key, value in module.items() if isinstance(value, TensorRef) and key not in live]
        if extra:
            found = "in the checkpoint, not restored"
            self._notes.note("weights", LEFT_OUT, found, extra, "a place in the model", found, "model")

    # -- what is made from what --------------------------------------------------------------------------------------

    def _pairs(self) -> None:
        """Masters against weights, and copies against their originals."""
        if self._level == "structure":
            return
        proven = self._level == "full" and self._proven_by_files()
        todo = [one for one in self._reading.pairs if one.component != "masters" or one.role or not proven]
        for pair, names in zip(todo, pairs.differing_in(todo, self._threads), strict=True):
            if pair.component != "masters":
                self._copy(pair, names)
            elif pair.role:
                self._derived_weights(pair, names)
            elif names:
                self._stale_masters(pair, names)

    def _proven_by_files(self) -> bool:
        """Whether masters and weights both equal files whose layout is that of the engine, so that V4 follows."""
        listed = self._reading.layout is not None
        return listed and not any(
            self._notes.has_trouble(one) or not self._notes.says(one) for one in ("masters", "weights")
        )

    def _copy(self, pair: LivePair, names: list[str]) -> None:
        if not names:
            self._notes.fine(pair.component)
            return
        expected = "every copy of a weight equal to the weight"
        found = f"{pair.label.split(' ', 1)[0]} copies hold other values"
        self._notes.note(pair.component, MISMATCH, found, names, expected, found, always=True)

    def _derived_weights(self, pair: LivePair, names: list[str]) -> None:
        """ZeRO-3: no file holds the weights; they are the masters of the shard, cast."""
        stale = set(_names(pair)) & self._notes.names_of("masters")
        if not names and not stale and not self._notes.has_trouble("masters"):
            self._notes.fine("weights")
            return
        if names:
            said = "masters that the weights were not made from: the next step would undo the load"
            self._notes.note(
                "masters", MISMATCH, "stale", names, "weights that are the cast of their masters", said, do=pair.hint,
                always=True,
            )  # fmt: skip
        tree = self._tree("weights", pair.role)
        ref = tree.get(pair.path) if tree is not None else None
        if tree is None:
            return
        if not isinstance(ref, TensorRef):
            self._absent("weights", list(_names(pair)), pair.role)
            return
        numel = max(one.start + one.numel for one in pair.fragments)
        check = Check("weights", pair.label, "weight", pair.role, pair.copy, numel, pair.fragments, ref, pair.start)
        wrong = wrong_size(check)
        if wrong:
            self._notes.note("weights", MISMATCH, "size", _names(pair), _SAME_AS_FILE, wrong, pair.role)
            return
        compare_directly(check)
        self._bytes += check.nbytes
        self._conclude(check)

    def _stale_masters(self, pair: LivePair, names: list[str]) -> None:
        expected = "weights that are the cast of their masters"
        if self._notes.says("masters") and not (self._notes.has_trouble("masters") or self._notes.has_trouble("weights")):
            found = "the files themselves hold masters that their weights were not made from; the first step changes both"
            self._notes.note("masters", RESTORED, "stale", names, expected, found)
            return
        found = "masters that the weights were not made from: the first step would undo the load"
        self._notes.note("masters", MISMATCH, "stale", names, expected, found, do=pair.hint, always=True)

    # -- what cannot be compared -------------------------------------------------------------------------------------

    def _rest(self) -> None:
        for component, reason in self._reading.not_checked.items():
            self._notes.unknown(component, reason)
        for component, reason in self._reading.nowhere.items():
            self._notes.note(
                component, ABSENT, "nowhere", [], f"{component} in the file", reason, reason=reason
            )
        for component, (role, path) in self._reading.no_place.items():
            tree = self._files.get(role)
            if tree is not None and tree.get(path) is not None:
                reason = "the checkpoint has one, this engine has no place for it"
                self._notes.note(component, NOT_CHECKED, "no place", [], "a place in the engine", reason, role, reason=reason)


def largest_moments(reading: Reading) -> dict[str, float]:
    """The largest absolute value of each kind of moment on this rank, padding left out: ``{"exp_avg": 0.02, ...}``."""
    found: dict[str, float] = {}
    for state in reading.states:
        for key, value in state.entries.items():
            if not _is_array(value) or int(value.numel()) != state.size or not value.is_floating_point():
                continue
            flat = value.detach().reshape(-1)
            for one in state.fragments:
                low, high = flat.narrow(0, one.start, one.numel).aminmax()
                found[key] = max(found.get(key, 0.0), abs(float(low)), abs(float(high)))
    return found


def _names(pair: LivePair) -> set[str]:
    return {plain_name(one.name) for one in pair.fragments}


def _is_array(value: Any) -> bool:
    """A tensor with dimensions, live or in a file; those without are numbers."""
    if isinstance(value, TensorRef):
        return bool(value.shape)
    return hasattr(value, "element_size") and value.dim() > 0


def _is_empty(value: Any) -> bool:
    if _is_array(value):
        return not bool(value.detach().any())
    return values.is_nothing(value)


def _in_threads(step: Any, items: Sequence[Any], threads: int) -> None:
    if threads > 1 and len(items) > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(step, items))
    else:
        for one in items:
            step(one)


def _short(text: str, most: int = 200) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


__all__ = ["LEVELS", "Comparison", "compare", "largest_moments", "number_in"]
