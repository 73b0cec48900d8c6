"""What a file has for each live thing. Plain values are answered here; tensors become ``Check``s for ``settling``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dspatch.checkpoint import swap
from dspatch.checkpoint.tensors import TensorRef
from dspatch.checkpoint.unpickle import Tree
from dspatch.live.reading import LiveState, LiveTensor, LiveValue
from dspatch.verdict import values
from dspatch.verdict.collector import Collector
from dspatch.verdict.outcome import ABSENT, FRESH, LEFT_OUT, MISMATCH
from dspatch.verdict.request import DATA_PARTS
from dspatch.verdict.tensors import Check, dtype_of, wrong_size

SAME_AS_FILE = "the same as in the file"

#: Swap files are named after numbers that DeepSpeed gives parameters, counted over the life of a process.
ONE_PROCESS = (
    "load into the first engine that a fresh process builds, from the same model: swap files bear the numbers "
    "that parameters have in their process"
)

_HOLDS_NONE = "the checkpoint holds none"
_STATE = ("moments", "optimizer_step")
_LONGEST = 200


class Matcher:
    """Looks up live things in the files and takes notes.

    Args:
        files: role -> tree.
        notes: to add to.
        strict: ``load_module_strict`` of the load.
        swap_rank: whose swap files are this rank's own.

    Attributes:
        checks: tensors that both sides have, of sizes that fit.
    """

    def __init__(self, files: Mapping[str, Tree], notes: Collector, strict: bool = True, swap_rank: int = 0) -> None:
        self._files, self._notes, self._strict, self._swap_rank = files, notes, strict, swap_rank
        self.checks: list[Check] = []

    def tree(self, component: str, role: str) -> Tree | None:
        """The file of a role; without it, the component is noted as not checked."""
        tree = self._files.get(role)
        if tree is None:
            self._notes.unknown(component, f"its {role} file was not read")
        return tree

    def absent(self, component: str, names: Sequence[str], role: str) -> None:
        """Note that the checkpoint holds nothing for a component."""
        expected = f"{component} in the file"
        # DeepSpeed goes on without the state of a feature that was off at the save.
        word = LEFT_OUT if component in DATA_PARTS else ABSENT
        if component == "frozen" and not self._strict and not self._lists(names):
            word = LEFT_OUT
        self._notes.note(component, word, component, names, expected, _HOLDS_NONE, role, reason=_HOLDS_NONE)

    def _lists(self, names: Sequence[str]) -> bool:
        """Whether the file lists a frozen parameter: then it was not excluded at the save, and its values are lost."""
        tree = self._files.get("model")
        module = tree.get(("module",)) if tree is not None else None
        return isinstance(module, dict) and any(name in module for name in names)

    def tensor(self, live: LiveTensor) -> None:
        """A tensor with a place of its own."""
        tree = self.tree(live.component, live.role)
        if tree is None:
            return
        ref = tree.get(live.path)
        if live.swap and isinstance(ref, TensorRef):
            names = [one.name for one in live.fragments]
            ref = self.swapped(live.component, live.swap, dtype_of(live.tensor), int(live.tensor.numel()), names)
            if ref is None:
                return
        if isinstance(ref, TensorRef):
            self._add(
                Check(
                    live.component, live.label, live.component, live.role, live.tensor, live.numel, live.fragments, ref
                )
            )
        elif live.path[0] == "module" and isinstance(tree.get(("module",)), dict):
            return  # `weights_by_name` judges names that only one side has
        elif live.missing:
            self._notes.unknown(live.component, live.missing)
        else:
            self.absent(live.component, [one.name for one in live.fragments] or [live.label], live.role)

    def state(self, live: LiveState) -> None:
        """The state of one tensor: whatever either side has."""
        names = [one.name for one in live.fragments] or [live.label]
        trees = [self.tree(component, live.role) for component in _STATE]
        if trees[0] is None:
            return
        filed = _filed_state(trees[0], live)
        for component in _STATE:
            if filed is None:
                self.absent(component, names, live.role)
            else:
                # An optimizer without state (plain SGD, a run before its first step) is restored when it has none.
                self._notes.fine(component)
        for key in dict.fromkeys((*(filed or ()), *live.entries)) if filed is not None else ():
            here, there = live.entries.get(key), (filed or {}).get(key)
            if here is not None and key in live.swaps and isinstance(there, TensorRef):
                there = self.swapped("moments", live.swaps[key], dtype_of(here), int(here.numel()), names)
                if there is None:
                    continue
            self._entry(live, str(key), here, there, names)

    def swapped(self, component: str, name: str, dtype: str, numel: int, names: Sequence[str]) -> TensorRef | None:
        """The elements that the tag's swap file holds (NVMe offload); without the file, the component is noted as absent."""
        tree = self._files["shard"]
        path = swap.path_in(Path(tree.path).parent, self._swap_rank, name)
        if path is None:
            expected, found = f"swap file {name} in the tag", "no file of that name, and DeepSpeed reads no other"
            self._notes.note(component, ABSENT, "swap", names, expected, found, "shard", do=ONE_PROCESS, reason=found)
            return None
        return swap.tensor_in(path, dtype, numel)

    def _entry(self, live: LiveState, key: str, here: Any, there: Any, names: list[str]) -> None:
        of_arrays = key != "step" and any(is_array(one) for one in (here, there))
        component = "moments" if of_arrays else "optimizer_step"
        if here is None and there is None:
            return
        if here is None:
            self._notes.note(component, FRESH, key, names, f"{key}, as in the file", f"no {key}", live.role)
        elif there is None:
            if not _is_empty(here):
                found = f"{key}, which the file does not hold"
                self._notes.note(component, MISMATCH, f"extra {key}", names, f"no {key}", found, live.role)
        elif is_array(here) and isinstance(there, TensorRef) and there.shape:
            whole = int(here.numel()) == live.size
            fragments = live.fragments if whole else ()
            numel = live.numel if whole else int(here.numel())
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

    def value(self, live: LiveValue) -> None:
        """Plain values, name by name."""
        tree = self.tree(live.component, live.role)
        if tree is None:
            return
        filed = tree.get(live.path)
        if filed is None:
            # The reason holds only where the file has something of another form in that place.
            if live.missing and isinstance(tree.get(live.path[:-2]), list):
                self._notes.unknown(live.component, live.missing)
            elif live.computed:
                self._notes.unknown(live.component, live.computed)
            elif not live.optional:
                self.absent(live.component, [live.label], live.role)
            return
        found = list(values.differences(live.value, filed, live.ignore))
        if not found:
            self._notes.fine(live.component)
        for name, here, there in found:
            label = f"{live.label}.{name}" if name else live.label
            word = FRESH if live.component == "counters" and values.is_nothing(here) else MISMATCH
            expected, said = _short(f"{label} {there!r}, as in the file"), _short(f"{label} {here!r}")
            self._notes.note(live.component, word, label, [label], expected, said, live.role)

    def weights_by_name(self, tensors: Sequence[LiveTensor], stage: int) -> None:
        """Names that only the model or only the file has; DeepSpeed drops them silently when not strict."""
        tree = self._files.get("model")
        module = tree.get(("module",)) if tree is not None else None
        live = {one.path[1]: one for one in tensors if one.role == "model" and one.path[0] == "module"}
        if not isinstance(module, dict) or not live:
            return
        lacking = [key for key in live if not isinstance(module.get(key), TensorRef)]
        # A few names are a partial load that somebody asked for; most of them are names that do not fit at all.
        word = ABSENT if 2 * len(lacking) > len(live) else LEFT_OUT
        met = f"{len(live) - len(lacking)} of {len(live)} names met"
        found = f"in the model, not in the checkpoint ({met})"
        for component in ("weights", "frozen"):
            gone = [key for key in lacking if live[key].component == component]
            if gone:
                expected = "a value in the file"
                self._notes.note(component, word, found, gone, expected, found, "model", prefix_hint(live, module), found)
        extra = [key for key, value in module.items() if isinstance(value, TensorRef) and key not in live]
        if extra and stage < 3:  # there the file has every parameter, without elements
            found = "in the checkpoint, not restored"
            expected = "a place in the model"
            self._notes.note("weights", LEFT_OUT, found, extra, expected, found, "model", prefix_hint(live, module))

    def _add(self, check: Check) -> None:
        wrong = wrong_size(check)
        if not wrong:
            self.checks.append(check)
            return
        names = [one.name for one in check.fragments] or [check.label]
        what = f"size of {check.what}"
        self._notes.note(check.component, MISMATCH, what, names, SAME_AS_FILE, f"{what}: {wrong}", check.role)


def prefix_hint(live: Iterable[str], filed: Iterable[Any]) -> str:
    """What to do about names that differ by a prefix; empty when they do not."""
    here, there = list(live), [str(key) for key in filed]
    for longer, shorter, side in ((here, there, "model"), (there, here, "checkpoint")):
        prefix = _prefix_of(longer, shorter)
        if prefix:
            return f"the {side}'s names have the prefix {prefix!r}, the others do not: load with the names alike"
    return ""


def _prefix_of(longer: Sequence[str], shorter: Sequence[str]) -> str:
    """The prefix that most names of one side have before a name of the other; empty when there is none."""
    known = set(shorter)
    counted: Counter[str] = Counter()
    for name in longer:
        parts = name.split(".")
        # Wrappers add few levels; a name's own tail would match by chance.
        counted.update(
            ".".join(parts[:cut]) + "." for cut in range(1, min(len(parts), 5)) if ".".join(parts[cut:]) in known
        )
    found = counted.most_common(1)
    return found[0][0] if found and 2 * found[0][1] > min(len(longer), len(shorter)) else ""


def _filed_state(tree: Tree, live: LiveState) -> dict[Any, Any] | None:
    """What the file holds; empty where nothing had been stored yet; None where it has no place for optimizer state."""
    for path in live.paths:
        found = tree.get(path)
        if isinstance(found, dict):
            return found
        if path[-2] == "state" and isinstance(tree.get(path[:-1]), dict):
            return {}
    return None


def is_array(value: Any) -> bool:
    """A tensor with dimensions, live or in a file; those without are numbers."""
    if isinstance(value, TensorRef):
        return bool(value.shape)
    return hasattr(value, "element_size") and value.dim() > 0


def _is_empty(value: Any) -> bool:
    return not bool(value.detach().any()) if is_array(value) else values.is_nothing(value)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
