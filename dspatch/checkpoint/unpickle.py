"""The object tree of a ``.pt`` file, read without running any of it and without torch.

Tensors become ``TensorRef``s that say where their bytes lie; containers, numbers and texts are plain; everything else
is an ``Opaque`` stand-in. Both formats of ``torch.save`` are read: the zip format, and the older one in which pickles
and tensor data follow each other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dspatch.checkpoint.archive import LEGACY_MAGIC, Archive, Record
from dspatch.checkpoint.content import crc_of
from dspatch.checkpoint.damage import Damaged
from dspatch.checkpoint.files import opened, read_exactly
from dspatch.checkpoint.inert import Opaque, call, dtype_name
from dspatch.checkpoint.machine import BadPickle, Limits, Machine, children
from dspatch.checkpoint.tensors import ITEMSIZE, STORAGE_DTYPES, StorageRef, TensorRef

#: More elements than any file can hold; such a number is an attack on whoever adds it up.
_MOST_ELEMENTS = 1 << 62
_MOST_DIMENSIONS = 64


_ABSENT = object()


@dataclass(slots=True)
class Tree:
    """What one file holds.

    Attributes:
        path: the file.
        root: the object that was saved, DeepSpeed: a dict.
        archive: the index; None for the legacy format.
        tensors: every tensor, in the order of appearance.
        names: ``(module, name)`` of every class and function that the pickle refers to.
        pickle_size: bytes of the pickle.
    """

    path: str
    root: Any
    archive: Archive | None
    tensors: list[TensorRef] = field(repr=False)
    names: tuple[tuple[str, str], ...]
    pickle_size: int

    def get(self, path: Sequence[Any], default: Any = None) -> Any:
        """The value at a path of keys, list positions and attribute names, or ``default`` where there is none."""
        value = self.root
        for key in path:
            try:
                value = value.get(key, _ABSENT) if isinstance(value, dict | Opaque) else value[key]
            except (TypeError, IndexError, KeyError):
                return default
            if value is _ABSENT:
                return default
        return value


def read_tree(path: str | os.PathLike[str], limits: Limits | None = None) -> Tree:
    """Read one file's tree.

    Args:
        path: a file that ``torch.save`` wrote.
        limits: what the pickle may take; the defaults suit files from anywhere.

    Raises:
        Damaged: the file is not whole, its pickle is broken or takes too much, or a tensor lies outside its storage.
    """
    name = os.fspath(path)
    allowed = limits or Limits()
    with opened(name) as descriptor:
        head = os.pread(descriptor, len(LEGACY_MAGIC), 0)
    if head == LEGACY_MAGIC:
        return _read_legacy(name, allowed)
    archive = Archive(name)
    data = archive.read("data.pkl", limit=allowed.size)
    if crc_of(data) != archive.records["data.pkl"].crc32:
        raise Damaged(name, "was changed after it was written: the checksum of its data.pkl differs", "crc")
    if (order := archive.records.get("byteorder")) is not None and order.size != len("little"):
        raise Damaged(name, "was written on a big-endian machine, which dspatch does not read", "limit")
    builder = _ZipBuilder(archive)
    machine = Machine(data, builder.storage, builder.reduce, allowed)
    root = _run(name, machine)
    if machine.end != len(data):
        raise Damaged(name, f"has {len(data) - machine.end:,} bytes behind the end of its pickle", "hostile")
    return Tree(name, root, archive, builder.tensors, tuple(machine.names), len(data))


def walk(root: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value of a tree with one path to it, each container once however often it is shared, without recursion.

    Paths are made of keys and list positions, and of ``"args"``, ``"state"`` and ``"items"`` inside stand-ins.
    """
    seen: set[int] = set()
    todo: list[tuple[tuple[Any, ...], Any]] = [((), root)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, dict | list | tuple | set | frozenset | Opaque):
            if id(value) in seen:
                continue
            seen.add(id(value))
        yield path, value
        todo.extend(((*path, key), inside) for key, inside in reversed(_named(value)))


def _named(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, Opaque):
        return [("args", value.args), ("state", value.state), ("items", value.items)]
    return list(enumerate(children(value)))


def _run(path: str, machine: Machine, start: int = 0) -> Any:
    try:
        return machine.run(start)
    except BadPickle as error:
        raise Damaged(path, f"cannot be read safely: its pickle {error}", error.kind) from error


class _Builder:
    """Makes tensors from what a pickle asks to rebuild."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.tensors: list[TensorRef] = []
        self._storages: dict[str, StorageRef] = {}

    def storage(self, identity: Any) -> StorageRef:
        """A persistent id of torch: ``("storage", class, key, device, elements)`` and, in legacy files, a view."""
        if not isinstance(identity, tuple) or len(identity) < 5 or identity[0] != "storage":
            raise BadPickle("refers to something outside the file that is no tensor storage", "hostile")
        _, kind, key, location, numel = identity[:5]
        dtype = STORAGE_DTYPES.get(kind.name) if isinstance(kind, Opaque) else None
        if dtype is None or not isinstance(key, str) or type(numel) is not int or not 0 <= numel < _MOST_ELEMENTS:
            raise BadPickle("refers to a tensor storage in a way that torch does not write", "tensor")
        if len(identity) > 5 and identity[5] is not None:
            raise BadPickle("holds views of storages, as torch wrote them before 0.4", "limit")
        known = self._storages.get(key)
        if known is None or known.dtype != dtype or known.numel != numel:
            record = self._record(key, numel * ITEMSIZE[dtype])
            known = self._storages[key] = StorageRef(record, dtype, numel, str(location))
        return known

    def _record(self, key: str, size: int) -> Record:
        raise NotImplementedError

    def reduce(self, function: Opaque, args: tuple[Any, ...]) -> Any:
        """Rebuild tensors and parameters; leave everything else to ``inert.call``."""
        rebuild = _TENSOR_BUILDERS.get(function.name) if function.args is None else None
        if rebuild is not None and function.module in _BUILDER_MODULES:
            return rebuild(self, args)
        return call(function, args)

    def _tensor(self, args: tuple[Any, ...]) -> Any:
        """``_rebuild_tensor(storage, offset, size, stride)`` and ``_v2(..., requires_grad, hooks, metadata)``."""
        storage, offset, size, stride = args[:4]
        return self._checked(storage, storage.dtype, offset, size, stride, args[4] if len(args) > 4 else False)

    def _tensor_v3(self, args: tuple[Any, ...]) -> Any:
        """``_rebuild_tensor_v3(storage, offset, size, stride, requires_grad, hooks, dtype, metadata)``."""
        storage, offset, size, stride, requires_grad, _, dtype = args[:7]
        name = dtype_name(dtype)
        if name is None:
            raise BadPickle("holds a tensor of an unknown dtype", "tensor")
        return self._checked(storage, name, offset, size, stride, requires_grad)

    def _parameter(self, args: tuple[Any, ...]) -> Any:
        """``_rebuild_parameter(data, requires_grad, hooks)``, with or without state: the tensor inside."""
        return args[0]

    def _typed(self, args: tuple[Any, ...]) -> Any:
        """``_rebuild_from_type(function, type, args, state)``: what the function rebuilds."""
        function, _, inner = args[:3]
        if not isinstance(function, Opaque) or not isinstance(inner, tuple):
            raise BadPickle("rebuilds a tensor in a way that torch does not write", "tensor")
        return self.reduce(function, inner)

    def _layout(self, args: tuple[Any, ...]) -> Any:
        return args[0] if args and isinstance(args[0], str) else None

    def _checked(self, storage: Any, dtype: str, offset: Any, size: Any, stride: Any, requires_grad: Any) -> TensorRef:
        if not isinstance(storage, StorageRef):
            raise BadPickle("holds a tensor without a storage", "tensor")
        if len(size) != len(stride) or len(size) > _MOST_DIMENSIONS:
            raise BadPickle("holds a tensor whose shape and strides do not fit", "tensor")
        if type(offset) is not int or not 0 <= offset < _MOST_ELEMENTS:
            raise BadPickle("holds a tensor with an impossible shape", "tensor")
        last, numel = offset, 1
        for length, step in zip(size, stride, strict=True):
            if (
                type(length) is not int or type(step) is not int
                or not 0 <= length < _MOST_ELEMENTS or not 0 <= step < _MOST_ELEMENTS
            ):  # fmt: skip
                raise BadPickle("holds a tensor with an impossible shape", "tensor")
            last += (length - 1) * step
            numel *= length
        made = TensorRef(self.path, storage, dtype, tuple(size), tuple(stride), offset, bool(requires_grad))
        if numel and (last >= storage.record.size // ITEMSIZE[dtype] or numel >= _MOST_ELEMENTS):
            raise BadPickle(
                f"holds a tensor of shape {list(size)[:8]} that reaches beyond its record "
                f"{storage.record.name} ({storage.record.size:,} bytes)", "tensor",
            )  # fmt: skip
        self.tensors.append(made)
        return made


_BUILDER_MODULES = ("torch._utils", "torch._tensor", "torch.serialization")
_TENSOR_BUILDERS = {
    "_rebuild_tensor": _Builder._tensor,
    "_rebuild_tensor_v2": _Builder._tensor,
    "_rebuild_tensor_v3": _Builder._tensor_v3,
    "_rebuild_parameter": _Builder._parameter,
    "_rebuild_parameter_with_state": _Builder._parameter,
    "_rebuild_from_type": _Builder._typed,
    "_rebuild_from_type_v2": _Builder._typed,
    "_get_layout": _Builder._layout,
}


class _ZipBuilder(_Builder):
    def __init__(self, archive: Archive) -> None:
        super().__init__(archive.path)
        self._archive = archive

    def _record(self, key: str, size: int) -> Record:
        record = self._archive.records.get(f"data/{key}")
        if record is None:
            raise BadPickle(f"needs a tensor record data/{key[:40]} that the file does not hold", "tensor")
        if record.size != size:
            raise BadPickle(f"wants {size:,} bytes of data/{key[:40]}, which holds {record.size:,}", "tensor")
        return record


class _LegacyBuilder(_Builder):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.records: dict[str, Record] = {}

    def _record(self, key: str, size: int) -> Record:
        known = self.records.setdefault(key, Record(self.path, key, size, None))
        if known.size != size:
            raise BadPickle(f"gives its storage {key[:40]} two sizes", "tensor")
        return known


def _read_legacy(path: str, limits: Limits) -> Tree:
    """Magic, protocol, system, the object, the list of storage keys; then size and bytes of each storage."""
    with opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        data = read_exactly(path, descriptor, min(size, limits.size), 0)
    builder = _LegacyBuilder(path)
    names: dict[tuple[str, str], None] = {}
    position, parts = 0, []
    for _ in range(5):
        machine = Machine(data, builder.storage, builder.reduce, limits)
        parts.append(_run(path, machine, position))
        position = machine.end
        names.update(machine.names)
    _, protocol, system, root, keys = parts
    if protocol != 1001 or not isinstance(system, dict) or system.get("little_endian") is not True:
        raise Damaged(path, "is in a legacy format that dspatch does not know, or from a big-endian machine", "limit")
    if not isinstance(keys, list) or sorted(map(str, keys)) != sorted(builder.records):
        raise Damaged(path, "lists other storages than its tensors need", "tensor")
    _place_storages(path, [builder.records[key] for key in keys], position, size, {
        one.record.name: one.numel for one in builder._storages.values()
    })  # fmt: skip
    return Tree(path, root, None, builder.tensors, tuple(names), position)


def _place_storages(path: str, records: list[Record], position: int, size: int, numels: dict[str, int]) -> None:
    with opened(path) as descriptor:
        for record in records:
            written = int.from_bytes(os.pread(descriptor, 8, position), "little")
            if position + 8 + record.size > size:
                raise Damaged(path, f"is cut short: it ends inside the storage {record.name}", "cut")
            if written != numels[record.name]:
                raise Damaged(path, f"holds {written:,} elements where {numels[record.name]:,} are expected", "tensor")
            record._offset = position + 8
            position += 8 + record.size
    if position != size:
        raise Damaged(path, f"is over-long: {size - position:,} bytes follow its last storage", "over-long")
