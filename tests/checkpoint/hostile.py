"""Files made to harm whoever reads them. Each maker writes one file and says what it tries."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

#: What hostile pickles would leave behind if anything of them ran.
MARK = "dspatch_was_executed"


class _Call:
    """Pickles as a call of ``function`` with ``args``."""

    def __init__(self, function: Any, *args: Any) -> None:
        self._call = (function, args)

    def __reduce__(self) -> Any:
        return self._call


def _zip(path: Path, data: bytes, compress: int = zipfile.ZIP_STORED, **records: bytes) -> None:
    with zipfile.ZipFile(path, "w", compress) as archive:
        archive.writestr("archive/data.pkl", data)
        for name, content in records.items():
            archive.writestr(f"archive/{name.replace('__', '/')}", content)
        archive.writestr("archive/version", b"3\n")


def _global(module: str, name: str) -> bytes:
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def _touch(folder: Path) -> str:
    return f"touch {folder / MARK}"


def _system(folder: Path, protocol: int) -> bytes:
    return pickle.dumps({"module": _Call(os.system, _touch(folder))}, protocol)


def _evaluate(folder: Path, protocol: int) -> bytes:
    return pickle.dumps([_Call(eval, f"open({str(folder / MARK)!r}, 'w')")], protocol)


def _nested(folder: Path) -> bytes:
    inner = pickle.dumps(_Call(os.system, _touch(folder)))
    return pickle.dumps(_Call(pickle.loads, inner))


def _memo(folder: Path) -> bytes:
    """The function comes out of the memo, long after it went in."""
    command = _touch(folder).encode()
    return (
        b"\x80\x02" + _global("os", "system") + b"q\x07" + b"0" + b"}q\x01X\x01\x00\x00\x00aK\x01s0"
        + b"h\x07" + b"X" + struct.pack("<I", len(command)) + command + b"\x85R."
    )  # fmt: skip


def _stack_global(folder: Path) -> bytes:
    command = _touch(folder).encode()
    return b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c" + bytes([len(command)]) + command + b"\x85R."


def _inst(folder: Path) -> bytes:
    return b"(S'" + _touch(folder).encode() + b"'\nios\nsystem\n."


def _obj(folder: Path) -> bytes:
    return b"(" + _global("os", "system") + b"S'" + _touch(folder).encode() + b"'\no."


def _build(folder: Path) -> bytes:
    """BUILD with a ``__setstate__`` that would be looked up, and a ``__dict__`` that would be updated."""
    return b"\x80\x02" + _global("builtins", "exec") + b")\x81}X\x0c\x00\x00\x00__setstate__" + _global("os", "system") \
        + b"sbX" + struct.pack("<I", len(_touch(folder))) + _touch(folder).encode() + b"b."  # fmt: skip


def _rebuild_from_type(folder: Path) -> bytes:
    """Through torch's own builder, which calls the function it is given."""
    command = _touch(folder).encode()
    inner = b"X" + struct.pack("<I", len(command)) + command + b"\x85"
    return b"\x80\x02" + _global("torch._tensor", "_rebuild_from_type_v2") + b"(" + _global("os", "system") \
        + _global("torch", "Tensor") + inner + b"}tR."  # fmt: skip


def _getattr_chain(folder: Path) -> bytes:
    command = _touch(folder).encode()
    return b"\x80\x02" + _global("builtins", "getattr") + b"(" + _global("builtins", "__import__") \
        + b"X\x02\x00\x00\x00os\x85R" + b"X\x06\x00\x00\x00systemtR" + b"X" + struct.pack("<I", len(command)) \
        + command + b"\x85R."  # fmt: skip


#: Pickles that would run something: maker of the bytes, given the folder where the mark would appear.
EXECUTING: dict[str, Callable[[Path], bytes]] = {
    **{f"os_system_protocol_{p}": (lambda folder, p=p: _system(folder, p)) for p in range(6)},  # type: ignore[misc]
    **{f"eval_protocol_{p}": (lambda folder, p=p: _evaluate(folder, p)) for p in range(6)},  # type: ignore[misc]
    "nested_loads": _nested, "from_the_memo": _memo, "stack_global": _stack_global, "inst": _inst, "obj": _obj,
    "build": _build, "rebuild_from_type": _rebuild_from_type, "getattr_chain": _getattr_chain,
}  # fmt: skip


def _tuple_bomb() -> bytes:
    """A key whose hash takes 2**60 steps: tuples of twice the same tuple."""
    data = b"\x80\x02}K\x01\x85q\x00"
    for _ in range(60):
        data += b"h\x00h\x00\x86q\x00"
    return data[:3] + data[3:] + b"K\x01s."


def _colliding_keys() -> bytes:
    """Integers that all have the hash 0."""
    prime = (1 << 61) - 1
    items = b"".join(
        b"\x8a" + bytes([len(raw)]) + raw + b"N"
        for raw in ((k * prime).to_bytes(((k * prime).bit_length() + 8) // 8, "little") for k in range(1, 60_000))
    )
    return b"\x80\x02}(" + items + b"u."


#: Pickles that take: time, memory or stack. All end in an error.
TAKING: dict[str, bytes] = {
    "huge_memo_index": b"\x80\x02}r\xff\xff\xff\xff.",
    "huge_bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b".",
    "huge_text": b"\x80\x02X\xff\xff\xff\xff.",
    "huge_frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"}.",
    "huge_long": b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b"\x01" * 100 + b".",
    "long_digits": b"I" + b"9" * 3_000_000 + b"\n.",
    "deep_lists": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
    "deep_tuples": b"\x80\x02)" + b"\x85" * 500_000 + b".",
    "deep_tuples_in_memory": b"\x80\x02)" + b"\x85q\x00" * 500_000 + b".",
    "many_marks": b"(" * 3_000_000 + b".",
    "many_dicts": b"\x80\x02" + b"}" * 3_000_000 + b".",
    "many_lists": b"\x80\x02" + b"]" * 3_000_000 + b".",
    "many_tuples": b"\x80\x02" + b")\x85" * 1_500_000 + b".",
    "many_sets": b"\x80\x04" + b"\x8f" * 3_000_000 + b".",
    "many_built_sets": b"\x80\x02c__builtin__\nset\nq\x00" + b"h\x00)R" * 900_000 + b".",
    "many_ordered_dicts": b"\x80\x02ccollections\nOrderedDict\nq\x00" + b"h\x00)R" * 900_000 + b".",
    "many_stand_ins": b"\x80\x02cos\nsystem\nq\x00" + b"h\x00)R" * 900_000 + b".",
    "many_names": b"\x80\x02" + b"ca\nb\n" * 2_100_000 + b".",
    "wide_text": b"\x80\x02X" + struct.pack("<I", 30_000_000) + b"a" * 29_999_996 + "\U0001f600".encode() + b"0" * 9,
    "tuple_bomb": _tuple_bomb(),
    "colliding_keys": _colliding_keys(),
    "extension_code": b"\x80\x02\x82\x01.",
    "out_of_band": b"\x80\x05\x97.",
    "no_stop": b"\x80\x02}",
    "empty_stack": b"\x80\x02.",
    "pop_nothing": b"\x80\x020000.",
    "unknown_opcode": b"\x80\x02\xff.",
    "protocol_9": b"\x80\x09}.",
    "foreign_persistent_id": b"\x80\x02X\x04\x00\x00\x00evilQ.",
    "bytes_after_the_end": b"\x80\x02}.cos\nsystem\n.",
    "append_to_dict": b"\x80\x02}K\x01a.",
}  # fmt: skip


def torch_file() -> bytes:
    """A healthy file as torch writes it."""
    buffer = io.BytesIO()
    torch.save({"module": {"w": torch.arange(100.0)}, "more": torch.ones(7, dtype=torch.bfloat16)}, buffer)
    return buffer.getvalue()


def write_pickle(path: Path, data: bytes) -> None:
    """A zip-format file with this ``data.pkl``."""
    _zip(path, data)


def write_archives(folder: Path) -> dict[str, Path]:
    """Archives with hostile structure; what each tries -> its file."""
    good = b"\x80\x02}."
    made: dict[str, Path] = {}

    def file(name: str) -> Path:
        made[name] = folder / f"{name}.pt"
        return made[name]

    _zip(file("deflated_bomb"), b"\x80\x02" + b"N0" * 20_000_000 + b"}.", zipfile.ZIP_DEFLATED)
    _zip(file("compressed_record"), good, zipfile.ZIP_DEFLATED, data__0=b"\0" * 1_000_000)
    for name, entry in (
        ("traversal", "archive/../../evil"), ("absolute", "/etc/evil"), ("backslash", "archive/..\\evil"),
        ("two_roots", "other/data.pkl"), ("control_character", "archive/a\x1bb"),
    ):  # fmt: skip
        with zipfile.ZipFile(file(name), "w") as archive:
            archive.writestr("archive/data.pkl", good)
            archive.writestr(entry, b"x")
    _duplicate(file("duplicate"), good)
    _lying(file("beyond_the_end"), good, size=1 << 40)
    _lying(file("overlap"), good, header=0)
    _lying(file("many_records"), good, count=0xFFFE)
    file("prefix").write_bytes(b"#!/bin/sh\nreboot\n" + torch_file())
    file("suffix").write_bytes(torch_file() + b"more")
    file("cut").write_bytes(torch_file()[:-100])
    file("cut_to_the_header").write_bytes(torch_file()[:40])
    file("empty").write_bytes(b"")
    file("zeros").write_bytes(b"\0" * 4096)
    file("text").write_bytes(b"this is no checkpoint\n")
    file("only_an_end").write_bytes(b"PK\x05\x06" + b"\0" * 18)
    with zipfile.ZipFile(file("no_pickle"), "w") as archive:
        archive.writestr("archive/data/0", b"1234")
    return made


def _duplicate(path: Path, good: bytes) -> None:
    import warnings

    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("archive/data.pkl", good)
        archive.writestr("archive/data.pkl", b"cos\nsystem\n.")


def _lying(
    path: Path, good: bytes, size: int | None = None, header: int | None = None, count: int | None = None
) -> None:
    """An archive whose index says something else about its last record, or about the number of records."""
    _zip(path, good, data__0=b"1234")
    raw = bytearray(path.read_bytes())
    last = raw.rfind(b"PK\x01\x02")
    if size is not None:
        raw[last + 20 : last + 28] = struct.pack("<2L", size & 0xFFFFFFFE, size & 0xFFFFFFFE) if size < 1 << 32 else \
            struct.pack("<2L", 0xFFFFFFF0, 0xFFFFFFF0)  # fmt: skip
    if header is not None:
        raw[last + 42 : last + 46] = struct.pack("<L", header)
    if count is not None:
        end = raw.rfind(b"PK\x05\x06")
        raw[end + 8 : end + 12] = struct.pack("<2H", count, count)
    path.write_bytes(bytes(raw))


def write_tensors(folder: Path) -> dict[str, Path]:
    """Files whose tensors lie about themselves; what each does -> its file."""
    made: dict[str, Path] = {}
    for name, (size, stride, offset, numel, key) in {
        "beyond_its_record": ((1000,), (1,), 0, 4, "0"),
        "wild_offset": ((4,), (1,), 1 << 40, 4, "0"),
        "negative_offset": ((4,), (1,), -4, 4, "0"),
        "huge_shape": ((1 << 61, 1 << 61), (0, 0), 0, 4, "0"),
        "record_of_another_size": ((4,), (1,), 0, 1 << 50, "0"),
        "record_that_is_not_there": ((4,), (1,), 0, 4, "../../../etc/passwd"),
        "many_dimensions": ((1,) * 1000, (1,) * 1000, 0, 4, "0"),
        "text_as_shape": (("a",), (1,), 0, 4, "0"),
    }.items():
        made[name] = folder / f"tensor_{name}.pt"
        _zip(made[name], _tensor_pickle(size, stride, offset, numel, key), data__0=b"\0" * 16)
    return made


def _tensor_pickle(size: Any, stride: Any, offset: int, numel: int, key: str) -> bytes:
    class _Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return ("storage", torch.FloatStorage, key, "cpu", numel) if obj is marker else None

    marker, buffer = object(), io.BytesIO()
    made = _Call(torch._utils._rebuild_tensor_v2, marker, offset, size, stride, False, {})
    _Pickler(buffer, 2).dump({"w": made})
    return buffer.getvalue()
