"""One file as plain data: everything that judging a tag needs to know of it, small enough to send around as JSON.

A shard of many GB becomes a few hundred bytes here, so ten thousand of them fit into memory and into the files that
``--part`` writes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from dspatch.checkpoint import layout, references
from dspatch.checkpoint.damage import Damaged
from dspatch.checkpoint.shard import FileFacts, OptimizerFacts, facts_of, rank_of, saved_as
from dspatch.checkpoint.tensors import TensorRef
from dspatch.checkpoint.unpickle import Tree, read_tree

#: Names and values kept for messages; the rest is only counted.
_FEW = 5
#: Checksums kept of one file, to tell whether two files hold the same state.
_MOST_SUMS = 64

Json = dict[str, Any]


@dataclass(slots=True)
class FileRecord:
    """What one file says. Lists and numbers only, so that a way through JSON changes nothing.

    Attributes:
        tag: the tag it lies in; for a stray file the folder, relative to the checkpoint folder.
        name: relative to the folder of the tag, with ``/``.
        size: bytes.
        kind: of ``layout.KINDS``; ``parameter`` and ``universal`` for files of a universal checkpoint; empty for others.
        dp_rank, mp_rank, layer, expert, expp_rank: as the name says.
        bf16: the name begins with ``bf16_``.
        damage: ``[kind, why]`` of ``Damaged``; None when the file was read.
        legacy: in torch's older, non-zip format, which has no checksums.
        torch_format: which torch wrote it, as far as the records of the file tell.
        dangerous, unknown: names that the pickle refers to (see ``references``).
        ds_version, stage, precision, dp_world_size, mp_world_size, partition_count, global_steps, global_samples,
            skipped_steps, has_scheduler, client_keys, num_experts, ep_size, round_robin: as in ``FileFacts``.
        bad_counters: keys of DeepSpeed's own that hold another type than DeepSpeed writes.
        config: what judging needs of ``ds_config``.
        config_digest: of the whole ``ds_config``.
        optimizer: what the file says of the optimizer, see ``_optimizer``; None when it holds nothing.
        fits: data-parallel ranks that a shard's content fits; None when it does not tell.
        shapes: for each group ``[parameters, elements, elements of one stage-3 partition]``.
        shapes_digest: of all names and shapes.
        param_layers: pipeline layers that the names of parameters belong to.
        has_module: the file has a dict of weights.
        lacks: number and first names of parameters that a model file lists and does not hold.
        components: name -> ``[tensors, elements, bytes]``.
        params: shape of the parameter, for ``fp32.pt`` of a universal checkpoint.
        sums: ``[crc32, bytes]`` of the first moments and masters.
        saved_as: the name that the file was saved under; empty when it does not tell (see ``shard.saved_as``).
        deep: what ``deep`` found; None when it did not look.
    """

    tag: str
    name: str
    size: int
    kind: str = ""
    dp_rank: int | None = None
    mp_rank: int | None = None
    layer: int | None = None
    expert: int | None = None
    expp_rank: int | None = None
    bf16: bool = False
    damage: list[str] | None = None
    legacy: bool = False
    torch_format: str = ""
    dangerous: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    ds_version: str | None = None
    stage: int | None = None
    precision: str | None = None
    dp_world_size: int | None = None
    mp_world_size: int | None = None
    partition_count: list[int] = field(default_factory=list)
    global_steps: int | None = None
    global_samples: int | None = None
    skipped_steps: int | None = None
    has_scheduler: bool = False
    client_keys: list[str] = field(default_factory=list)
    num_experts: list[int] = field(default_factory=list)
    ep_size: int | None = None
    round_robin: bool = False
    bad_counters: list[str] = field(default_factory=list)
    config: Json = field(default_factory=dict)
    config_digest: str | None = None
    optimizer: Json | None = None
    fits: list[int] | None = None
    shapes: list[list[int]] = field(default_factory=list)
    shapes_digest: str | None = None
    frozen: list[int] = field(default_factory=list)
    param_layers: list[int] = field(default_factory=list)
    has_module: bool = False
    lacks: list[Any] = field(default_factory=list)
    components: dict[str, list[int]] = field(default_factory=dict)
    shape: list[int] | None = None
    sums: list[list[int]] = field(default_factory=list)
    saved_as: str = ""
    deep: Json | None = None

    def as_json(self) -> Json:
        """The record as plain data, without what a new record holds already."""
        new = asdict(FileRecord("", "", -1))
        return {name: value for name, value in asdict(self).items() if value != new[name]}

    @classmethod
    def from_json(cls, data: Json) -> FileRecord:
        """The other way.

        Raises:
            KeyError, TypeError: this is no record.
        """
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})


def blank(tag: str, name: str, size: int) -> FileRecord:
    """The record of a file that was not opened: what its name says."""
    made = FileRecord(tag, name, size)
    role = layout.parse(name)
    if role is not None:
        made.kind, made.bf16 = role.kind, role.bf16
        made.dp_rank, made.mp_rank, made.expp_rank = role.dp_rank, role.mp_rank, role.expp_rank
        made.layer, made.expert = role.layer, role.expert
    elif name.startswith(f"{layout.UNIVERSAL}/") and name.endswith(".pt"):
        made.kind = "parameter" if name.count("/") == 2 else "universal"
    return made


def read(tag: str, folder: Path, name: str, size: int, models: Models) -> FileRecord:
    """Read one file's index and tree; whatever is wrong with it becomes ``damage``.

    Args:
        tag: see ``FileRecord``.
        folder: of the tag.
        name: of the file, relative to it.
        size: bytes, as listed.
        models: where the model file that belongs to a shard is looked up.
    """
    made = blank(tag, name, size)
    try:
        if made.kind == "model":
            _fill(made, *models.load(folder / name), folder, models)
        else:
            tree = read_tree(folder / name)
            _fill(made, tree, facts_of(tree), folder, models)
    except Damaged as error:
        made.damage = [error.kind, error.why]
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        # A tree that is valid and absurd: a list where DeepSpeed writes a number, and the like.
        made.damage = ["content", f"holds what DeepSpeed does not write ({type(error).__name__}: {str(error)[:120]})"]
    return made


class Models:
    """Trees and facts of model files, kept while the shards that belong to them are read."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Tree, FileFacts] | Damaged] = {}

    def load(self, path: Path) -> tuple[Tree, FileFacts]:
        """Tree and facts of a model file, read once.

        Raises:
            Damaged: it cannot be read.
        """
        if path not in self._known:
            if len(self._known) >= 8:
                self._known.clear()
            try:
                tree = read_tree(path)
                self._known[path] = (tree, facts_of(tree))
            except Damaged as error:
                self._known[path] = error
        found = self._known[path]
        if isinstance(found, Damaged):
            raise found
        return found

    def of(self, folder: Path, mp_rank: int) -> FileFacts | None:
        """The model file of a model-parallel rank (stages 0 to 2); None when there is none that can be read."""
        path = folder / layout.model_file(0, mp_rank)
        try:
            return self.load(path)[1] if path.is_file() else None
        except (Damaged, OSError, TypeError, ValueError, AttributeError, KeyError, IndexError, OverflowError):
            return None  # it gets a record, and a finding, of its own


def _fill(made: FileRecord, tree: Tree, facts: FileFacts, folder: Path, models: Models) -> None:
    made.dangerous = references.dangerous(tree.names)
    made.unknown = references.unknown(tree.names)[:_FEW]
    made.legacy = tree.archive is None
    made.torch_format = _torch_format(tree)
    made.saved_as = f"{tree.archive.folder}.pt" if tree.archive is not None and saved_as(tree) is not None else ""
    for name in ("ds_version", "stage", "precision", "dp_world_size", "mp_world_size", "partition_count", "global_steps",
                 "global_samples", "skipped_steps", "has_scheduler", "num_experts", "ep_size", "round_robin"):  # fmt: skip
        setattr(made, name, getattr(facts, name))
    made.client_keys = [str(key) for key in facts.client_keys]
    made.config, made.config_digest = _config(facts.ds_config), _digest(facts.ds_config) if facts.ds_config else None
    if made.kind == "parameter":
        _fill_parameter(made, tree.root)
    if facts.optimizer is not None:
        made.optimizer = _optimizer(facts, facts.optimizer)
        made.sums = _sums(facts.optimizer)
    if made.kind == "shard":
        model = models.of(folder, made.mp_rank or 0)
        made.fits = rank_of(facts, model) if model is not None else None
    _fill_weights(made, facts)
    if made.kind in ("model", "model_part") and isinstance(tree.root, dict):
        made.bad_counters = _bad_counters(tree.root)
    _count(made, facts)


def _fill_parameter(made: FileRecord, root: Any) -> None:
    ref = root.get("param") if isinstance(root, dict) else root
    if isinstance(ref, TensorRef):
        made.shape = list(ref.shape)
        made.components["parameter"] = [1, ref.numel, ref.nbytes]


def _fill_weights(made: FileRecord, facts: FileFacts) -> None:
    made.has_module = facts.module is not None
    size = max(made.dp_world_size or 1, 1)
    for group in facts.param_shapes:
        numels = [_numel(shape) for _, shape in group]
        made.shapes.append([len(group), sum(numels), sum(-(-numel // size) for numel in numels)])
    names = [name for group in facts.param_shapes for name, _ in group]
    if facts.param_shapes:
        made.shapes_digest = _digest([[name, list(shape)] for group in facts.param_shapes for name, shape in group])
    heads = {name.split(".", 1)[0] for name in names}
    made.param_layers = sorted(int(head) for head in heads if head.isdecimal() and len(head) < 7)
    if facts.module is not None and names:
        # Experts lie in files of their own, under the numbers that they have over all ranks.
        absent = [name for name in names if name not in facts.module and "deepspeed_experts" not in name]
        absent = [name for name in absent if name not in facts.shared]
        made.lacks = [len(absent), *absent[:_FEW]] if absent else []
    made.frozen = [len(facts.frozen_shapes), sum(_numel(shape) for shape in facts.frozen_shapes.values())]
    made.frozen = made.frozen if made.frozen[0] else []


def _count(made: FileRecord, facts: FileFacts) -> None:
    if facts.module:
        name = "experts" if made.kind == "expert" else "weights"
        buffers = {key for key in facts.buffer_names if key in facts.module}
        frozen = {key for key in facts.frozen_shapes if key in facts.module} - buffers
        _add(made, name, (ref for key, ref in facts.module.items() if key not in buffers and key not in frozen))
        _add(made, "buffers", (facts.module[key] for key in buffers))
        _add(made, "frozen", (facts.module[key] for key in frozen))
    if facts.fragments and made.kind == "model_part":
        made.components.pop("frozen", None)
        _add(made, "frozen", facts.fragments.values())
    if facts.optimizer is not None:
        _add(made, "masters", facts.optimizer.masters)
        _add(made, "moments", facts.optimizer.moments)


def _add(made: FileRecord, component: str, refs: Iterable[TensorRef]) -> None:
    total = [0, 0, 0]
    for ref in refs:
        total = [total[0] + 1, total[1] + ref.numel, total[2] + ref.nbytes]
    if total[0]:
        made.components[component] = total


def _optimizer(facts: FileFacts, optimizer: OptimizerFacts) -> Json:
    """What a file says of the optimizer.

    ``style``, ``kind``, ``elastic``: as in ``OptimizerFacts``. ``steps``: sorted. ``odd_step``: a step that is a vector.
    ``names``: of the state tensors. ``masters``, ``padded``: elements of each master, without and with its padding.
    ``states``: for each entry of the state ``[state name -> elements]``. ``groups``: hyperparameters, numbers and texts
    only. ``scaler``: of the loss scaler, the same.
    """
    masters = [ref.numel for ref in optimizer.masters]
    paddings = facts.group_paddings if optimizer.style == "zero12" else []
    padded = [numel + (paddings[at] if at < len(paddings) else 0) for at, numel in enumerate(masters)]
    states = [
        {name: value.numel for name, value in one.items() if isinstance(value, TensorRef) and name != "step"}
        for one in optimizer.state.values()
    ]
    step_refs = [one["step"] for one in optimizer.state.values() if isinstance(one.get("step"), TensorRef)]
    return {
        "style": optimizer.style, "kind": optimizer.kind, "elastic": optimizer.elastic,
        "steps": sorted(optimizer.steps), "odd_step": any(ref.numel != 1 for ref in step_refs),
        "names": optimizer.moment_names, "masters": masters, "padded": padded, "states": states,
        "entries": len(optimizer.state), "groups": [_plain(one) for one in optimizer.groups],
        "scaler": _plain(optimizer.scaler),
    }  # fmt: skip


def _sums(optimizer: OptimizerFacts) -> list[list[int]]:
    refs = [ref for ref in (*optimizer.moments, *optimizer.masters) if ref.is_whole_record and ref.nbytes >= 64]
    return [[ref.record.crc32, ref.nbytes] for ref in refs[:_MOST_SUMS] if ref.record.crc32 is not None]


def _plain(values: Json) -> Json:
    """Numbers, texts and short lists of them; the rest is left out."""
    kept: Json = {}
    for key, value in values.items():
        if isinstance(value, tuple | list) and len(value) <= 8 and all(_is_plain(one) for one in value):
            kept[str(key)] = list(value)
        elif _is_plain(value):
            kept[str(key)] = value
    return kept


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 1 << 63) or (
        isinstance(value, str) and len(value) <= 200)  # fmt: skip


def _bad_counters(root: Json) -> list[str]:
    """Keys of DeepSpeed's own with another type than it writes: the caller's ``client_state`` was laid over them."""
    kinds: tuple[tuple[str, tuple[type, ...]], ...] = (
        ("global_steps", (int,)), ("global_samples", (int,)), ("skipped_steps", (int,)), ("dp_world_size", (int,)),
        ("mp_world_size", (int,)), ("module", (dict, type(None))), ("lr_scheduler", (dict, type(None))),
        ("ds_version", (str,)), ("ds_config", (dict,)), ("param_shapes", (list, type(None))),
        ("buffer_names", (list, type(None))), ("shared_params", (dict, type(None))),
    )  # fmt: skip
    return [
        key for key, allowed in kinds if key in root and not (isinstance(root[key], allowed) and root[key] is not True)
    ]


_ZERO_KEYS = ("stage", "round_robin_gradients", "elastic_checkpoint", "parameter_alignment", "zero_hpz_partition_size",
              "mics_shard_size")  # fmt: skip


def _config(config: Json) -> Json:
    """What judging needs of ``ds_config``."""
    zero = config.get("zero_optimization")
    zero = zero if isinstance(zero, dict) else {}
    offload = zero.get("offload_optimizer")
    offload = offload if isinstance(offload, dict) else {}
    types = config.get("data_types")
    checkpoint = config.get("checkpoint")
    found = {key: zero.get(key) for key in _ZERO_KEYS} | {
        "offload": offload.get("device"), "ratio": offload.get("ratio"), "super_offload": offload.get("super_offload"),
        "zenflow": bool(zero.get("zenflow")), "scheduler": bool(config.get("scheduler")),
        "grad_dtype": types.get("grad_accum_dtype") if isinstance(types, dict) else None,
        "load_universal": checkpoint.get("load_universal") if isinstance(checkpoint, dict) else None,
    }  # fmt: skip
    return {key: value for key, value in _plain(found).items() if value not in (None, False)}


def _digest(value: Any) -> str | None:
    try:
        text = json.dumps(value, sort_keys=True, default=repr)
    except (TypeError, ValueError, RecursionError):
        return None
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _torch_format(tree: Tree) -> str:
    """No file names the torch that wrote it; the records that were added over time narrow it down."""
    if tree.archive is None:
        return "older than 1.6, or saved without the zip format"
    names = tree.archive.records
    for record, text in ((".storage_alignment", "2.7 or newer"), (".format_version", "2.6 or newer"),
                         ("byteorder", "2.1 or newer")):  # fmt: skip
        if record in names:
            return text
    return "1.6 to 2.0"


def _numel(shape: Iterable[int]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product
