"""The tensors of one tag under the names of parameters, put together from pieces wherever the stage cut them up.

A parameter's master may be one run of elements in a universal folder, two runs at the ends of two ranks' flat partitions
at stage 2, and eight equal parts at stage 3 on eight ranks. Here all of them are a ``Named`` tensor with a list of
``Fragment``s; nothing is read but indexes and object trees.

What cannot be named (stage 0 does not say which parameter a moment belongs to, experts are cut over fewer ranks) stands
under the file and the place that it has there, ``raw``: it can be compared with the same place of the same layout only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dspatch.checkpoint import layout
from dspatch.checkpoint.damage import Damaged
from dspatch.checkpoint.shard import FileFacts, OptimizerFacts, facts_of
from dspatch.checkpoint.tensors import TensorRef
from dspatch.checkpoint.unpickle import Tree, read_tree
from dspatch.diff import stage0
from dspatch.diff.plain import flat
from dspatch.offline import inspection, reading
from dspatch.offline.judge import Judged
from dspatch.offline.survey import CannotLook, Survey, look

#: Name of a component, of the state tensor in it (``exp_avg``; empty elsewhere), and of the parameter.
Key = tuple[str, str, str]

#: What stands between the name of a parameter and a model-parallel rank, where several ranks have a slice of it.
RANK = " (model-parallel rank "

#: Files of a parameter's folder in a universal checkpoint that are no moments.
_MASTER, _STEP = "fp32", "step"

#: Components without tensors, by where they lie.
_OF_MODEL = ("lr_scheduler", "counters", "data_sampler", "random_ltd", "client_state")
_OF_OPTIMIZER = ("optimizer_step", "param_groups", "loss_scaler")


@dataclass(frozen=True, slots=True)
class Fragment:
    """Elements ``start`` to ``start + count`` of a tensor: those of ``ref`` (contiguous) from ``at`` on."""

    start: int
    ref: TensorRef
    at: int
    count: int


@dataclass(slots=True)
class Named:
    """One tensor of a tag.

    Attributes:
        shape: of the parameter; flat for ``raw`` ones.
        dtype: such as ``"float32"``.
        fragments: in order of their elements.
        raw: it has no name of a parameter, only a place in a file.
    """

    shape: tuple[int, ...]
    dtype: str
    fragments: list[Fragment]
    raw: bool = False

    @property
    def numel(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def complete(self) -> bool:
        """Whether the fragments cover every element once."""
        at = 0
        for one in self.fragments:
            if one.start != at:
                return False
            at += one.count
        return at == self.numel


@dataclass(slots=True)
class State:
    """What one tag holds.

    Attributes:
        judged: what ``dspatch inspect`` says of the tag.
        survey: of its checkpoint folder.
        tensors: every tensor that was found.
        values: component -> path of keys -> number or text, for the components that are no tensors.
        absent: component -> why a healthy tag of this layout does not hold it.
        lost: component -> why it, or a part of it, could not be read.
        steps: different optimizer steps.
        ahead: steps that the optimizer counts beyond the engine in a healthy tag.
    """

    judged: Judged
    survey: Survey
    tensors: dict[Key, Named] = field(default_factory=dict)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)
    ahead: int = 0

    @property
    def frozen(self) -> set[str]:
        """Names of parameters that are known not to be trained."""
        return {name for component, _, name in self.tensors if component == "frozen"}


def read_state(folder: str, tag: str | None) -> State:
    """Read a tag.

    Args:
        folder: the checkpoint folder, a tag folder, or one level off.
        tag: its name; None: the one in ``latest``, else the newest.

    Raises:
        CannotLook: there is no such folder or tag, or its files hold what DeepSpeed does not write.
    """
    survey = look(folder, tag)
    wish = inspection.Wish(folder, tag)
    chosen = inspection.choose(survey, wish)
    items = reading.plan(survey, chosen)
    records = reading.read_all(survey, items)
    found = inspection.conclude(survey, wish, chosen, items, records, None, look_further=False)
    if not found.tags:
        raise CannotLook("; ".join(one.text for one in found.findings) or f"{survey.folder} holds no tag")
    made = State(found.tags[0], survey)
    try:
        _Reader(made, reading.folder_of(survey, made.judged.tag)).read()
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        # Trees that are valid and absurd: texts where DeepSpeed writes shapes, and the like.
        what = f"{type(error).__name__}: {str(error)[:120]}"
        raise CannotLook(
            f"{made.judged.tag} in {survey.folder} holds what DeepSpeed does not write ({what})"
        ) from error
    return made


class _Reader:
    """Reads the files of one tag into a ``State``."""

    def __init__(self, state: State, folder: Path) -> None:
        self._state, self._folder = state, folder
        self._laid = state.judged.layout
        self._files: dict[str, tuple[Tree, FileFacts]] = {}
        self._broken: dict[str, str] = {}

    def read(self) -> None:
        """Everything."""
        for record in self._state.judged.records:
            if record.kind:
                self._load(record.name)
        models = self._of("model", "model_part")
        # Every rank's file of a stage-3 tag says the same of names, shapes and counters; the first of each is enough.
        first: dict[int, tuple[Tree, FileFacts]] = {}
        for tree, facts in models:
            first.setdefault(_mp(facts), (tree, facts))
        several = len(first) > 1
        for mp, (tree, facts) in sorted(first.items()):
            self._weights(facts, self._suffix(mp, several, first))
            if mp == min(first):
                self._values(tree, facts)
        self._frozen_parts(models)
        self._expert_and_layer_weights()
        if self._laid.universal:
            self._universal({mp: facts for mp, (_, facts) in first.items()})
        else:
            for mp, (tree, facts) in sorted(first.items()):
                self._optimizer(mp, tree, facts, self._suffix(mp, several, first))
        self._reasons()

    def _load(self, name: str) -> None:
        try:
            tree = read_tree(self._folder / name)
            self._files[name] = (tree, facts_of(tree))
        except Damaged as error:
            self._broken[name] = f"{name} {error.why}"
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
            self._broken[name] = f"{name} holds what DeepSpeed does not write ({type(error).__name__})"

    def _of(self, *kinds: str) -> list[tuple[Tree, FileFacts]]:
        found = [one for one in self._files.values() if one[1].role is not None and one[1].role.kind in kinds]
        return sorted(found, key=lambda one: (_mp(one[1]), _dp(one[1])))

    def _suffix(self, mp: int, several: bool, first: dict[int, tuple[Tree, FileFacts]]) -> dict[str, str]:
        """Names of one model-parallel rank -> names in the state: those that several ranks have get the rank behind them."""
        facts = first[mp][1]
        own = _names(facts)
        if not several:
            return {name: name for name in own}
        elsewhere = {name for other, (_, theirs) in first.items() if other != mp for name in _names(theirs)}
        return {name: f"{name}{RANK}{mp})" if name in elsewhere else name for name in own}

    # --- weights ------------------------------------------------------------------------------------------------------

    def _weights(self, facts: FileFacts, called: dict[str, str]) -> None:
        buffers = set(facts.buffer_names)
        for name, ref in (facts.module or {}).items():
            component = "buffers" if name in buffers else "frozen" if name in facts.frozen_shapes else "weights"
            if facts.role is not None and facts.role.kind == "model_part" and component != "buffers":
                continue  # at stage 3 these have no elements
            self._put((component, "", called[name]), ref.shape, ref)

    def _frozen_parts(self, models: Sequence[tuple[Tree, FileFacts]]) -> None:
        """Stage 3 cuts what is not trained, too: equal parts, the last ones padded."""
        for _, facts in models:
            if facts.role is None or facts.role.kind != "model_part":
                continue
            for name, ref in facts.fragments.items():
                shape = facts.frozen_shapes.get(name)
                if shape is None or not ref.is_contiguous:
                    continue
                numel, start = math.prod(shape), _dp(facts) * ref.numel
                named = self._state.tensors.setdefault(("frozen", "", name), Named(shape, ref.dtype, []))
                if start < numel:
                    named.fragments.append(Fragment(start, ref, 0, min(ref.numel, numel - start)))

    def _expert_and_layer_weights(self) -> None:
        for _, facts in self._of("expert", "layer"):
            role = facts.role
            assert role is not None
            for name, ref in (facts.module or {}).items():
                component = "experts" if role.kind == "expert" else "weights"
                full = f"{role.layer}.{name}" if role.kind == "layer" else name
                if (role.mp_rank or 0) > 0:
                    full += f"{RANK}{role.mp_rank})"
                self._put((component, "", full), ref.shape, ref)

    def _put(self, key: Key, shape: Sequence[int], ref: TensorRef, raw: bool = False) -> None:
        if not ref.is_contiguous:
            dense = replace(ref, shape=(ref.numel,), stride=(1,))
            # Stored in another order of the dimensions: the same order on both sides compares as it lies.
            if 1 + sum((n - 1) * s for n, s in zip(ref.shape, ref.stride, strict=True)) != ref.numel:
                self._state.lost[key[0]] = f"{key[2]} is stored with gaps between its elements"
                return
            shape, ref = (*shape,), dense
        fragments = [Fragment(0, ref, 0, ref.numel)] if ref.numel else []
        self._state.tensors[key] = Named(tuple(shape), ref.dtype, fragments, raw)

    # --- plain values -------------------------------------------------------------------------------------------------

    def _values(self, tree: Tree, facts: FileFacts) -> None:
        root = tree.root if isinstance(tree.root, dict) else {}
        values = self._state.values
        counters = {name: getattr(facts, name) for name in ("global_steps", "global_samples", "skipped_steps")}
        values["counters"] = flat({name: count for name, count in counters.items() if count is not None})
        for name in ("lr_scheduler", "data_sampler", "random_ltd"):
            values[name] = flat(root.get(name))
        values["client_state"] = flat({key: root.get(key) for key in facts.client_keys})

    def _about_optimizer(self, optimizer: OptimizerFacts | None, groups: Any, precision: str | None) -> None:
        values = self._state.values
        listed = groups if isinstance(groups, list) else []
        values["param_groups"] = flat([
            {key: value for key, value in group.items() if key not in ("params", "step")}
            for group in listed if isinstance(group, dict)
        ])  # fmt: skip
        if optimizer is not None and precision == "fp16":
            kept = {key: value for key, value in optimizer.scaler.items() if key != "class"}
            values["loss_scaler"] = flat(kept)

    # --- optimizer ----------------------------------------------------------------------------------------------------

    def _optimizer(self, mp: int, tree: Tree, model: FileFacts, called: dict[str, str]) -> None:
        shards = {
            _dp(facts): facts for _, facts in self._of("shard") if _mp(facts) == mp and facts.optimizer is not None
        }
        if shards:
            leading = shards[min(shards)].optimizer
            assert leading is not None
            self._about_optimizer(leading, leading.groups, model.precision)
            self._steps(facts.optimizer for facts in shards.values())
            if leading.style == "zero3":
                self._stage3(shards, model, called)
            else:
                self._partitions(shards, model, called)
        elif model.optimizer is not None:
            self._about_optimizer(model.optimizer, model.optimizer.groups, model.precision)
            self._steps([model.optimizer])
            self._state.ahead = self._one_ahead(model)
            self._stage0(tree, model, called)
        for _, facts in self._of("expert_optimizer"):
            if _mp(facts) == mp and facts.optimizer is not None:
                self._raw(facts, range(len(facts.optimizer.masters)), "experts")

    def _steps(self, optimizers: Any) -> None:
        found = set(self._state.steps)
        for one in optimizers:
            if one is not None:
                found |= one.steps
        self._state.steps = sorted(found)

    def _one_ahead(self, model: FileFacts) -> int:
        """In 16 bits stage 0 takes a step with zero gradients when it is built, to make its state."""
        taken = (model.global_steps or 0) - (model.skipped_steps or 0)
        return int(model.optimizer is not None and model.optimizer.style == "fp16" and self._state.steps == [taken + 1])

    def _stage0(self, tree: Tree, model: FileFacts, called: dict[str, str]) -> None:
        optimizer = model.optimizer
        assert optimizer is not None
        places = stage0.places(tree, model)
        if places is None:
            self._raw(model, range(len(optimizer.masters)), "optimizer")
            return
        plain = optimizer.style == "torch"
        for name, place in places.items():
            shape = model.module[name].shape if model.module else ()
            key = called.get(name, name)
            if place.master is not None:
                self._part(("masters", "", key), shape, place.master, place.at)
            elif plain and model.module and model.module[name].dtype == "float32":
                # In fp32 without ZeRO the weights are what the optimizer steps on.
                self._put(("masters", "", key), shape, model.module[name])
            for kind, ref in place.state.items():
                self._part(("moments", kind, key), shape, ref, place.at)

    def _part(self, key: Key, shape: Sequence[int], ref: TensorRef, at: int) -> None:
        numel = math.prod(shape)
        if ref.is_contiguous and at + numel <= ref.numel:
            self._state.tensors[key] = Named(tuple(shape), ref.dtype, [Fragment(0, ref, at, numel)] if numel else [])

    def _partitions(self, shards: dict[int, FileFacts], model: FileFacts, called: dict[str, str]) -> None:
        """Stages 1 and 2, and the bf16 optimizer: each group is one flat run, cut into equal partitions."""
        for group, shapes in enumerate(model.param_shapes):
            count = max((_at(one.partition_count, group, 0) for one in shards.values()), default=0)
            whole = max((max(one.partition_count, default=0) for one in shards.values()), default=0)
            size = max((_partition_size(one, group) for one in shards.values()), default=0)
            total = sum(math.prod(shape) for _, shape in shapes)
            if count != whole or size * max(count, 1) < total or self._scrambled(model):
                for one in shards.values():
                    self._raw(one, [group], "optimizer")
                continue
            position = 0
            for name, shape in shapes:
                numel = math.prod(shape)
                for rank in range(position // size if size else 0, count):
                    begin, end = max(position, rank * size), min(position + numel, (rank + 1) * size)
                    if begin >= end:
                        break
                    for (component, kind), ref in _flat(shards.get(rank), group).items():
                        self._fragment((component, kind, called.get(name, name)), shape, begin - position, ref,
                                       begin - rank * size, end - begin)  # fmt: skip
                position += numel

    def _scrambled(self, model: FileFacts) -> bool:
        """Whether the order in flat partitions is not that of the listed shapes, or there is padding in between."""
        zero = model.ds_config.get("zero_optimization")
        return model.round_robin or bool(isinstance(zero, dict) and zero.get("parameter_alignment"))

    def _stage3(self, shards: dict[int, FileFacts], model: FileFacts, called: dict[str, str]) -> None:
        """Each parameter is cut into equal parts, one a rank; a rank's parts follow each other in its flat groups."""
        size = max((max(one.partition_count, default=0) for one in shards.values()), default=0)
        if size < max(shards) + 1:
            for one in shards.values():
                self._raw(one, range(len(one.optimizer.masters) if one.optimizer else 0), "optimizer")
            return
        for rank, shard in shards.items():
            assert shard.optimizer is not None
            needed = sum(-(-math.prod(shape) // size) for group in model.param_shapes for _, shape in group)
            if sum(ref.numel for ref in shard.optimizer.masters) < needed:
                self._state.lost["masters"] = f"the masters of rank {rank} are not in its shard (offloaded to NVMe?)"
                continue
            runs: dict[tuple[str, str], list[tuple[int, TensorRef]]] = {}
            start = 0
            for group, master in enumerate(shard.optimizer.masters):
                for key, ref in _flat(shard, group).items():
                    if ref.numel == master.numel:
                        runs.setdefault(key, []).append((start, ref))
                start += master.numel
            position = 0
            for name, shape in (one for group in model.param_shapes for one in group):
                numel = math.prod(shape)
                part = -(-numel // size)
                valid = min(part, max(0, numel - rank * part))
                for (component, kind), listed in runs.items():
                    for begin, ref in listed:
                        first, last = max(begin, position), min(begin + ref.numel, position + valid)
                        if first < last:
                            self._fragment((component, kind, called.get(name, name)), shape,
                                           rank * part + first - position, ref, first - begin, last - first)  # fmt: skip
                position += part

    def _fragment(self, key: Key, shape: Sequence[int], start: int, ref: TensorRef, at: int, count: int) -> None:
        named = self._state.tensors.setdefault(key, Named(tuple(shape), ref.dtype, []))
        if count and ref.is_contiguous and at + count <= ref.numel:
            named.fragments.append(Fragment(start, ref, at, count))

    def _raw(self, facts: FileFacts, groups: Any, what: str) -> None:
        file = Path(facts.path).name
        for group in groups:
            for (component, kind), ref in _flat(facts, group).items():
                self._put((component, kind, f"{file}: {what} group {group}"), (ref.numel,), ref, raw=True)
        if facts.optimizer is not None and not facts.optimizer.masters:
            for at, one in facts.optimizer.state.items():
                for kind, ref in one.items():
                    if isinstance(ref, TensorRef) and kind != "step":
                        self._put(("moments", kind, f"{file}: state {at}"), ref.shape, ref, raw=True)

    # --- universal ----------------------------------------------------------------------------------------------------

    def _universal(self, models: dict[int, FileFacts]) -> None:
        """A folder for each parameter. Converters put buffers, frozen and tied ones there too, with ``fp32.pt`` only."""
        beside: set[str] = set()
        for facts in models.values():
            beside |= {*facts.buffer_names, *facts.frozen_shapes, *facts.shared}
        # From stage 3 they are flat, and the model files say the shapes.
        shapes = {name: shape for facts in models.values() for group in facts.param_shapes for name, shape in group}
        steps = set()
        for file, (tree, _) in self._files.items():
            parts = file.split("/")
            if len(parts) == 3 and parts[0] == layout.UNIVERSAL:
                name, kind = parts[1], parts[2].removesuffix(".pt")
                ref = tree.root.get("param") if isinstance(tree.root, dict) else tree.root
                if kind == _STEP:
                    value = flat({"step": ref}).get("step")
                    steps |= {float(value)} if isinstance(value, int | float) else set()
                elif isinstance(ref, TensorRef) and name not in beside:
                    key = ("masters", "", name) if kind == _MASTER else ("moments", kind, name)
                    shape = shapes.get(name, ref.shape)
                    is_flat = len(ref.shape) == 1 and math.prod(shape) == ref.numel
                    self._put(key, shape if is_flat else ref.shape, ref)
            elif len(parts) == 2 and isinstance(tree.root, dict):
                precision = next((one.precision for one in models.values()), None)
                self._about_optimizer(_optimizer_of(tree), tree.root.get("param_groups"), precision)
                inner = tree.get(("optimizer_state_dict", "state"))
                for one in inner.values() if isinstance(inner, dict) else ():
                    value = flat({"step": one.get("step")}).get("step") if isinstance(one, dict) else None
                    steps |= {float(value)} if isinstance(value, int | float) else set()
        self._state.steps = sorted(steps)

    # --- what is not there ----------------------------------------------------------------------------------------------

    def _reasons(self) -> None:
        state, laid = self._state, self._laid
        for named in state.tensors.values():
            named.fragments.sort(key=lambda one: one.start)
        held = {component for component, _, _ in state.tensors}
        if laid.stage == 3 and "weights" not in held:
            state.absent["weights"] = "stage 3 keeps them as masters only"
        if "masters" not in held and not laid.sharded:
            state.absent["masters"] = "no file of this layout keeps them"
        there = {record.name for record in state.judged.records}
        gone = [name for name in laid.expected if name not in there]
        for name in (*self._broken, *gone):
            for component in self._hit(name):
                state.lost.setdefault(component, self._broken.get(name, f"{name} is not there"))

    def _hit(self, name: str) -> tuple[str, ...]:
        """Components that a file which cannot be read takes along."""
        role = layout.parse(name)
        kind = role.kind if role is not None else "parameter"
        if kind == "model_part" and self._of("model_part"):
            return ("frozen",)  # the other ranks' files say the rest
        if kind in ("model", "model_part"):
            # Without its list of names and shapes no shard can be read either.
            return ("weights", "frozen", "buffers", "masters", "moments", *_OF_MODEL, *_OF_OPTIMIZER)
        if kind in ("layer", "expert"):
            return ("weights",) if kind == "layer" else ("experts",)
        shards = ("masters", "moments")
        return shards if self._state.values.get("param_groups") else (*shards, *_OF_OPTIMIZER)


def _optimizer_of(tree: Tree) -> OptimizerFacts | None:
    """Only for its loss scaler, which lies at the top of a universal checkpoint's ``optimizer_state.pt``."""
    root = tree.root
    inside = root.get("loss_scaler") if isinstance(root, dict) else None
    state = getattr(inside, "state", None)
    return OptimizerFacts("universal", (), [], (), (), {}, [], dict(state) if isinstance(state, dict) else {})


def _names(facts: FileFacts) -> list[str]:
    listed = [name for group in facts.param_shapes for name, _ in group]
    return list(dict.fromkeys([*listed, *(facts.module or {})]))


def _flat(shard: FileFacts | None, group: int) -> dict[tuple[str, str], TensorRef]:
    """Master and moments of one group of a shard."""
    optimizer = shard.optimizer if shard is not None else None
    if optimizer is None:
        return {}
    found: dict[tuple[str, str], TensorRef] = {}
    if group < len(optimizer.masters):
        found["masters", ""] = optimizer.masters[group]
    keys = list(optimizer.state)
    state = optimizer.state.get(group, optimizer.state[keys[group]] if group < len(keys) else {})
    found.update({("moments", kind): ref for kind, ref in state.items()
                  if isinstance(ref, TensorRef) and kind != "step" and ref.is_contiguous})  # fmt: skip
    return found


def _partition_size(shard: FileFacts, group: int) -> int:
    """Elements of a partition with its padding, which stages 1 and 2 leave out of the saved masters."""
    if shard.optimizer is None or group >= len(shard.optimizer.masters):
        return 0
    lean = shard.optimizer.masters[group].numel
    return lean + (_at(shard.group_paddings, group, 0) if shard.optimizer.style == "zero12" else 0)


def _at(listed: Sequence[int], position: int, default: int) -> int:
    return listed[position] if position < len(listed) else default


def _mp(facts: FileFacts) -> int:
    return facts.role.mp_rank or 0 if facts.role is not None else 0


def _dp(facts: FileFacts) -> int:
    return facts.role.dp_rank or 0 if facts.role is not None else 0


def spans(one: Named, other: Named, most: int) -> Iterator[tuple[Fragment, Fragment]]:
    """Both tensors in the same pieces, of at most ``most`` elements; elements that either side lacks are left out."""
    a, b = list(reversed(one.fragments)), list(reversed(other.fragments))
    while a and b:
        left, right = a[-1], b[-1]
        start = max(left.start, right.start)
        end = min(left.start + left.count, right.start + right.count)
        for at in range(start, end, most):
            count = min(most, end - at)
            yield (Fragment(at, left.ref, left.at + at - left.start, count),
                   Fragment(at, right.ref, right.at + at - right.start, count))  # fmt: skip
        # The one that ends first is done, whether or not the other has begun.
        if left.start + left.count <= right.start + right.count:
            a.pop()
        if right.start + right.count <= left.start + left.count:
            b.pop()
