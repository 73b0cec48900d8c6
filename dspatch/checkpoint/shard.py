"""Facts of one checkpoint file, from its tree: plain data, the same words for every release and optimizer class.

Where each of DeepSpeed's optimizers keeps its state in a file:

* ``DeepSpeedZeroOptimizer`` (stages 1, 2) and ``BF16_Optimizer``: ``single_partition_of_fp32_groups`` (one flat
  tensor for each group) and ``base_optimizer_state`` (torch's state dict; with ``elastic_checkpoint`` a list of
  states, one a group).
* ``DeepSpeedZeroOptimizer_Stage3``: ``fp32_flat_groups`` (one flat tensor for each sub-group) and
  ``optimizer_state_dict``.
* stage 0, in the model file under ``optimizer``: ``FP16_Optimizer`` has ``fp32_groups_flat``, ``FP16_UnfusedOptimizer``
  ``fp32_groups`` (a tensor for each parameter), a plain torch optimizer just its own state dict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspatch.checkpoint import layout
from dspatch.checkpoint.content import scalar
from dspatch.checkpoint.inert import Opaque, enum_value
from dspatch.checkpoint.tensors import TensorRef
from dspatch.checkpoint.unpickle import Tree

#: Keys of a model file that are DeepSpeed's own; the rest is the user's ``client_state``.
ENGINE_KEYS = frozenset((
    "module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "frozen_param_fragments",
    "shared_params", "lr_scheduler", "data_sampler", "random_ltd", "sparse_tensor_module_names", "skipped_steps",
    "global_steps", "global_samples", "dp_world_size", "mp_world_size", "ds_config", "ds_version", "num_experts",
    "checkpoint_parallel_dimensions", "universal_checkpoint_info", "ds_autotp_universal_checkpoint_meta",
    "autoep_layers", "ds_autoep_layers", "ds_autoep_uc_meta", "ds_autoep_folding", "ep_size",
))  # fmt: skip

#: One piece of a parameter inside a flat partition: name, first element of the partition, number of elements.
Slice = tuple[str, int, int]


@dataclass(slots=True)
class OptimizerFacts:
    """What one file holds of the optimizer.

    Attributes:
        style: ``zero12``, ``bf16``, ``zero3``, ``fp16`` (flat or unfused) or ``torch``.
        path: key path of the optimizer's own dict inside the tree.
        masters: fp32 master tensors: one for each group or sub-group; for unfused stage 0 one for each parameter.
        masters_path: key path of the list of masters; empty for ``torch``, which has none.
        state_path: key path of torch's ``state`` dict, or of the list of states (elastic).
        state: key of the parameter (or position of the group) -> state name -> tensor or number.
        groups: hyperparameters of each group, without ``params``; empty where the file has none (elastic).
        scaler: what is known of the loss scaler, by attribute name; empty when there is none.
        elastic: written with ``elastic_checkpoint: true``.
    """

    style: str
    path: tuple[Any, ...]
    masters: list[TensorRef]
    masters_path: tuple[Any, ...]
    state_path: tuple[Any, ...]
    state: dict[Any, dict[str, Any]]
    groups: list[dict[str, Any]]
    scaler: dict[str, Any]
    elastic: bool = False

    @property
    def moment_names(self) -> list[str]:
        """Names of the state tensors with more than one element (``exp_avg``, ...), sorted."""
        return sorted(
            {
                name
                for one in self.state.values()
                for name, value in one.items()
                if isinstance(value, TensorRef) and name != "step"
            }
        )

    @property
    def moments(self) -> list[TensorRef]:
        """All state tensors but the step, in order."""
        return [value for one in self.state.values() for name, value in one.items()
                if isinstance(value, TensorRef) and name != "step"]  # fmt: skip

    @property
    def steps(self) -> set[float]:
        """The different optimizer steps of the file; empty when it holds none."""
        found = [one.get("step") for one in self.state.values()]
        found += [group["step"] for group in self.groups if isinstance(group.get("step"), int | float)]
        numbers = {_number(value) for value in found}
        return {number for number in numbers if number is not None}

    @property
    def kind(self) -> str:
        """The optimizer family, guessed from names of states and hyperparameters; empty when there are none."""
        return _family(set(self.moment_names), {key for group in self.groups for key in group})


@dataclass(slots=True)
class FileFacts:
    """What one file says. Any attribute may be None or empty: files of old releases, experts and layers say less.

    Attributes:
        path: the file.
        role: what its name says; None for a name that is not DeepSpeed's.
        ds_version: the DeepSpeed that wrote it.
        ds_config: the configuration at save, a dict.
        stage: ZeRO stage, from the optimizer state, else from ``ds_config``.
        precision: ``bf16``, ``fp16`` or ``fp32``, from ``ds_config`` and dtypes.
        dp_world_size: data-parallel ranks at save.
        mp_world_size: model-parallel ranks at save.
        partition_count: parts that each group is cut into; one number for all groups at stage 3.
        group_paddings: elements at the end of this rank's partition that belong to no parameter, for each group.
        global_steps: optimizer steps, skipped ones among them.
        global_samples: samples seen.
        skipped_steps: steps skipped for overflow.
        param_shapes: ordered ``(name, shape)`` of each group.
        frozen_shapes: name -> shape of parameters that are not trained.
        buffer_names: names of buffers.
        shared: name -> the name that the same tensor is listed under.
        slices: for each group, the pieces of parameters that this rank's partition holds, in order.
        optimizer: None when the file holds nothing of it.
        has_scheduler: the file holds the state of a learning-rate scheduler.
        module: name -> tensor of the weights; None where the file has none.
        client_keys: keys of the caller's ``client_state``.
        num_experts: experts of each MoE layer; empty without.
        ep_size: expert-parallel ranks, from the file or from the name of a parameter group; None where nothing tells.
        fragments: name -> tensor of parameters that are not trained, as stages 2 and 3 save them beside ``module``.
        round_robin: written with ``round_robin_gradients: true``, which changes the order inside flat partitions.
    """

    path: str
    role: layout.FileRole | None = None
    ds_version: str | None = None
    ds_config: dict[str, Any] = field(default_factory=dict)
    stage: int | None = None
    precision: str | None = None
    dp_world_size: int | None = None
    mp_world_size: int | None = None
    partition_count: list[int] = field(default_factory=list)
    group_paddings: list[int] = field(default_factory=list)
    global_steps: int | None = None
    global_samples: int | None = None
    skipped_steps: int | None = None
    param_shapes: list[list[tuple[str, tuple[int, ...]]]] = field(default_factory=list)
    frozen_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    buffer_names: list[str] = field(default_factory=list)
    shared: dict[str, str] = field(default_factory=dict)
    slices: list[list[Slice]] = field(default_factory=list)
    optimizer: OptimizerFacts | None = None
    has_scheduler: bool = False
    module: dict[str, TensorRef] | None = None
    client_keys: list[str] = field(default_factory=list)
    num_experts: list[int] = field(default_factory=list)
    ep_size: int | None = None
    fragments: dict[str, TensorRef] = field(default_factory=dict)
    round_robin: bool = False


def facts_of(tree: Tree) -> FileFacts:
    """Facts of a model file, a shard, or any other file of a tag. Never raises for what a file lacks."""
    facts = FileFacts(tree.path, layout.parse(Path(tree.path).name))
    root = tree.root
    if not isinstance(root, dict):
        return facts
    facts.ds_version = _text(root.get("ds_version"))
    facts.ds_config = root["ds_config"] if isinstance(root.get("ds_config"), dict) else {}
    facts.round_robin = bool(_config(facts.ds_config, "zero_optimization", "round_robin_gradients"))
    if isinstance(root.get("optimizer_state_dict"), dict) and "module" not in root:
        _read_shard(facts, root["optimizer_state_dict"])
    elif facts.role is not None and facts.role.kind in ("layer", "expert"):
        facts.module = _tensors(root)
    else:
        _read_model(facts, root)
    if facts.stage is None:
        facts.stage = _whole(_config(facts.ds_config, "zero_optimization", "stage"))
        if facts.stage is None and facts.ds_config and not facts.ds_config.get("zero_optimization"):
            facts.stage = 0
    facts.precision = _precision(facts)
    return facts


def saved_as(tree: Tree) -> layout.FileRole | None:
    """What the file was called when it was saved; None when it does not tell.

    ``torch.save(obj, path)`` names the folder inside the archive after the file, and a copy or a rename keeps it. Files
    that were written through a file object or under a temporary name tell nothing.
    """
    return layout.parse(f"{tree.archive.folder}.pt") if tree.archive is not None else None


def rank_of(shard: FileFacts, model: FileFacts) -> list[int] | None:
    """Data-parallel ranks that a shard's own content fits, whatever its name says; None when it does not tell.

    Stages 1 and 2 list the pieces of parameters in each partition (``param_slice_mappings``). Partition ``r`` begins
    at element ``r * size`` of its group, so the first piece tells ``r``. The lists are wrong under
    ``round_robin_gradients`` and then not used.
    """
    if not shard.slices or not model.param_shapes or shard.round_robin or len(shard.slices) != len(model.param_shapes):
        return None
    possible: set[int] | None = None
    for group, (slices, shapes) in enumerate(zip(shard.slices, model.param_shapes, strict=True)):
        ranks = _ranks_of_group(shard, group, slices, shapes)
        if ranks is not None:
            possible = ranks if possible is None else possible & ranks
    return None if possible is None else sorted(possible)


def _ranks_of_group(
    shard: FileFacts, group: int, slices: list[Slice], shapes: list[tuple[str, tuple[int, ...]]]
) -> set[int] | None:
    size = _partition_size(shard, group)
    count = shard.partition_count[group] if group < len(shard.partition_count) else 0
    # Experts are cut into fewer parts than the rest, and the same part then lies in several ranks' files.
    if not size or not count or count < max(shard.partition_count) or _has_gaps(shard, group):
        return None
    begin, position = {}, 0
    for name, shape in shapes:
        begin[name] = position
        numel = 1
        for length in shape:
            numel *= length
        position += numel
    if not slices:
        # Only padding: any rank whose partition begins behind the last parameter.
        return {rank for rank in range(count) if rank * size >= position}
    first, start, length = slices[0]
    if first not in begin:
        return None
    at = begin[first] - start
    # Either the partition begins inside the parameter (start 0), which goes on to its end or to that of the partition, or
    # the parameter begins inside the partition.
    if start == 0:
        end = at + _numel(dict(shapes)[first])
        return {rank for rank in range(count) if at <= rank * size < max(end, at + 1)
                and length == min(end - rank * size, size)}  # fmt: skip
    return {rank for rank in range(count) if rank * size == at}


def _partition_size(shard: FileFacts, group: int) -> int:
    """Elements of a partition with its padding: that of the moments, which keep it."""
    if shard.optimizer is None or group >= len(shard.optimizer.masters):
        return 0
    lean = shard.optimizer.masters[group].numel
    if shard.optimizer.style == "bf16":
        return lean
    return lean + (shard.group_paddings[group] if group < len(shard.group_paddings) else 0)


def _has_gaps(shard: FileFacts, group: int) -> bool:
    # `parameter_alignment` puts padding between parameters, so positions cannot be summed up from shapes.
    return bool(_config(shard.ds_config, "zero_optimization", "parameter_alignment"))


def _numel(shape: tuple[int, ...]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product


def _read_shard(facts: FileFacts, state: dict[str, Any]) -> None:
    facts.stage = _whole(enum_value(state.get("zero_stage")))
    facts.partition_count = _whole_list(state.get("partition_count"))
    facts.group_paddings = _whole_list(state.get("group_paddings"))
    facts.ds_version = facts.ds_version or _text(state.get("ds_version"))
    mappings = state.get("param_slice_mappings")
    if isinstance(mappings, list):
        facts.slices = [_slices(one) for one in mappings]
    facts.optimizer = _sharded_optimizer(state)
    facts.ep_size = _ep_size(facts.optimizer)


def _sharded_optimizer(state: dict[str, Any]) -> OptimizerFacts | None:
    path: tuple[Any, ...] = ("optimizer_state_dict",)
    if "fp32_flat_groups" in state:
        style, masters, inner = "zero3", "fp32_flat_groups", "optimizer_state_dict"
    elif "single_partition_of_fp32_groups" in state:
        style = "zero12" if "zero_stage" in state else "bf16"
        masters, inner = "single_partition_of_fp32_groups", "base_optimizer_state"
    else:
        return None
    base = state.get(inner)
    elastic = isinstance(base, list)
    return OptimizerFacts(
        style, path, _refs(state.get(masters)), (*path, masters),
        (*path, inner) if elastic else (*path, inner, "state"),
        _state(base), _groups(base), _scaler(state), elastic,
    )  # fmt: skip


def _read_model(facts: FileFacts, root: dict[str, Any]) -> None:
    facts.dp_world_size = _whole(root.get("dp_world_size"))
    facts.mp_world_size = _whole(root.get("mp_world_size"))
    facts.global_steps = _whole(root.get("global_steps"))
    facts.global_samples = _whole(root.get("global_samples"))
    facts.skipped_steps = _whole(root.get("skipped_steps"))
    groups = root.get("param_shapes")
    facts.param_shapes = [_shapes(group) for group in groups] if isinstance(groups, list) else []
    facts.frozen_shapes = dict(_shapes(root.get("frozen_param_shapes")))
    names = root.get("buffer_names")
    facts.buffer_names = [str(name) for name in names] if isinstance(names, list) else []
    shared = root.get("shared_params")
    facts.shared = {str(key): str(value) for key, value in shared.items()} if isinstance(shared, dict) else {}
    facts.has_scheduler = root.get("lr_scheduler") is not None
    facts.module = _tensors(root.get("module")) if isinstance(root.get("module"), dict) else None
    if "module" in root:
        facts.client_keys = sorted(str(key) for key in root if key not in ENGINE_KEYS)
    facts.optimizer = _model_optimizer(root.get("optimizer"))
    facts.num_experts = _whole_list(root.get("num_experts"))
    facts.ep_size = _whole(root.get("ep_size")) or _ep_size(facts.optimizer)
    fragments = root.get("frozen_param_fragments")
    facts.fragments = _tensors(fragments) if isinstance(fragments, dict) else {}


def _ep_size(optimizer: OptimizerFacts | None) -> int | None:
    """DeepSpeed names the parameter groups of experts ``ep_size_N``."""
    names = [str(group.get("name")) for group in optimizer.groups] if optimizer is not None else []
    found = [int(one) for name in names for one in re.findall(r"^ep_size_(\d{1,6})$", name)]
    return max(found, default=None)


def _model_optimizer(state: Any) -> OptimizerFacts | None:
    if not isinstance(state, dict):
        return None
    path: tuple[Any, ...] = ("optimizer",)
    if "optimizer_state_dict" in state:
        masters = "fp32_groups_flat" if "fp32_groups_flat" in state else "fp32_groups"
        base = state["optimizer_state_dict"]
        return OptimizerFacts(
            "fp16", path, _refs(state.get(masters)), (*path, masters), (*path, "optimizer_state_dict", "state"),
            _state(base), _groups(base), _scaler(state),
        )  # fmt: skip
    if "state" in state and "param_groups" in state:
        return OptimizerFacts("torch", path, [], (), (*path, "state"), _state(state), _groups(state), {})
    return None


def _state(base: Any) -> dict[Any, dict[str, Any]]:
    if isinstance(base, list):
        return {position: dict(one) for position, one in enumerate(base) if isinstance(one, dict)}
    inside = base.get("state") if isinstance(base, dict) else None
    if not isinstance(inside, dict):
        return {}
    entries = ((key, one) for key, one in inside.items() if isinstance(one, dict))
    return {key: {str(name): value for name, value in one.items()} for key, one in entries}


def _groups(base: Any) -> list[dict[str, Any]]:
    listed = base.get("param_groups") if isinstance(base, dict) else None
    if not isinstance(listed, list):
        return []
    return [{str(k): v for k, v in group.items() if k != "params"} for group in listed if isinstance(group, dict)]


def _scaler(state: Mapping[str, Any]) -> dict[str, Any]:
    """The loss scaler: a pickled object in shards, plain keys beside the state at stage 0."""
    found = state.get("loss_scaler")
    if isinstance(found, Opaque):
        attributes = dict(found.state) if isinstance(found.state, dict) else {}
        return {"class": found.name, **attributes}
    names = ("dynamic_loss_scale", "cur_scale", "cur_iter", "last_overflow_iter", "scale_factor", "scale_window")
    return {name: state[name] for name in names if name in state and "cur_scale" in state}


def _slices(mapping: Any) -> list[Slice]:
    if not isinstance(mapping, dict):
        return []
    found = []
    for name, address in mapping.items():
        start, numel = (address.get("start"), address.get("numel")) if isinstance(address, Opaque) else (None, None)
        if isinstance(start, int) and isinstance(numel, int):
            found.append((str(name), start, numel))
    return sorted(found, key=lambda one: one[1])


def _shapes(group: Any) -> list[tuple[str, tuple[int, ...]]]:
    if not isinstance(group, dict):
        return []
    return [(str(name), tuple(shape)) for name, shape in group.items() if isinstance(shape, tuple | list)]


def _tensors(mapping: Any) -> dict[str, TensorRef]:
    return {str(name): value for name, value in mapping.items() if isinstance(value, TensorRef)}


def _refs(listed: Any) -> list[TensorRef]:
    if not isinstance(listed, list | tuple):
        return []
    flat = [inner for one in listed for inner in (one if isinstance(one, list | tuple) else (one,))]
    return [one for one in flat if isinstance(one, TensorRef)]


def _precision(facts: FileFacts) -> str | None:
    for name, keys in (("bf16", ("bf16", "bfloat16")), ("fp16", ("fp16",))):
        if any(_config(facts.ds_config, key, "enabled") is True for key in keys):
            return name
    if facts.role is not None and facts.role.bf16:
        return "bf16"
    if facts.module:
        buffers = set(facts.buffer_names)
        dtypes = {ref.dtype for name, ref in facts.module.items() if name not in buffers}
        for dtype, name in (("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32")):
            if dtype in dtypes:
                return name
    return "fp32" if facts.ds_config else None


_FAMILIES = (
    ({"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, "Adam with amsgrad"),
    ({"exp_avg", "exp_avg_sq"}, "Adam"),
    ({"exp_avg"}, "Lion"),
    ({"sum"}, "Adagrad"),
    ({"momentum_buffer", "exp_avg", "exp_avg_sq"}, "Muon with Adam"),
    ({"square_avg"}, "RMSprop"),
)


def _family(states: set[str], hyperparameters: set[str]) -> str:
    for names, family in _FAMILIES:
        if states == names:
            return family
    if states == {"momentum_buffer"}:
        return "SGD with momentum" if "dampening" in hyperparameters or "nesterov" in hyperparameters else "Muon"
    if states:
        return f"unknown (state {', '.join(sorted(states))})"
    if "betas" in hyperparameters:
        return "Adam" if "eps" in hyperparameters else "Lion"
    return "SGD" if "momentum" in hyperparameters else ""


def _config(config: Mapping[str, Any], section: str, key: str) -> Any:
    inside = config.get(section)
    return inside.get(key) if isinstance(inside, dict) else None


def _number(value: Any) -> float | None:
    if isinstance(value, TensorRef):
        return scalar(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    # Larger integers count nothing, and Python refuses to write them as decimals.
    return value if type(value) is int and abs(value) < 1 << 63 else None


def _whole_list(value: Any) -> list[int]:
    listed = value if isinstance(value, list | tuple) else [value]
    return [one for one in listed if type(one) is int]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
