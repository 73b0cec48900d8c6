"""What a pickle names, without the thing itself: stand-ins for classes and functions, and plain builders for a few.

A pickle says "call this with that". Nothing is ever called here: a short list of well-known builders (tensors,
ordered dicts, numpy scalars) is rebuilt as plain data by functions of ours, and everything else becomes an ``Opaque``
that keeps its name and its arguments, readable and dead.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from dspatch.checkpoint.tensors import ITEMSIZE


class Opaque:
    """A class, a function, or an object made by one: its name and what the pickle handed to it.

    Attributes:
        module: such as ``"deepspeed.runtime.fp16.loss_scaler"``.
        name: such as ``"LossScaler"``; with a trailing ``()`` for what a call of a call would have made.
        args: the arguments of the call; None for a bare name that was never called.
        state: what the object's attributes would be, usually a dict; None without.
        items: what was appended to it (lists) or set on it (pairs), in order.
    """

    __slots__ = ("_items", "args", "module", "name", "state")

    def __init__(self, module: str, name: str, args: tuple[Any, ...] | None = None, state: Any = None) -> None:
        self.module, self.name, self.args, self.state = module, name, args, state
        self._items: list[Any] | None = None

    @property
    def items(self) -> list[Any]:
        """What was put into it, in order; made on first use, since most stand-ins have none."""
        if self._items is None:
            self._items = []
        return self._items

    @property
    def full_name(self) -> str:
        """Module and name, joined by a dot."""
        return f"{self.module}.{self.name}"

    def get(self, attribute: str, default: Any = None) -> Any:
        """The value of one attribute as pickled; also of objects with slots, whose state is a pair of dicts."""
        states = self.state if isinstance(self.state, tuple) else (self.state,)
        for state in states:
            if isinstance(state, dict) and attribute in state:
                return state[attribute]
        return default

    def __repr__(self) -> str:
        return f"<{self.full_name} as a stand-in>"


#: Larger integers are hashed modulo 2**61 - 1, so that any number of them can be made to share one hash.
_PLAIN_INT = 1 << 60


def is_plain_key(key: Any) -> bool:
    """Whether a key of a dict or a set is hashed at once, and cannot be one of many that were made to collide."""
    kind = type(key)
    return kind in _PLAIN_KEYS or (kind is int and -_PLAIN_INT < key < _PLAIN_INT)


def call(function: Opaque, args: tuple[Any, ...]) -> Any:
    """What a call that the pickle asks for amounts to here: plain data for a known builder, else a stand-in."""
    if function.args is not None:
        return Opaque(function.module, f"{function.name}()", args)
    builder = _BUILDERS.get((function.module, function.name))
    if builder is not None:
        return builder(function, args)
    return Opaque(function.module, function.name, args)


def dtype_name(value: Any) -> str | None:
    """``"bfloat16"`` for the stand-in of ``torch.bfloat16``; None for anything else."""
    if isinstance(value, Opaque) and value.module == "torch" and value.args is None and value.name in ITEMSIZE:
        return value.name
    return None


def enum_value(value: Any) -> Any:
    """The plain value behind an enum member (DeepSpeed pickles ``ZeroStageEnum``), and anything else unchanged."""
    if isinstance(value, Opaque) and value.state is None and value.args is not None and len(value.args) == 1:
        inside = value.args[0]
        return inside if isinstance(inside, int | str | float) else value
    return value


_PLAIN_KEYS = frozenset((str, bytes, bool, float, type(None), Opaque))


def _ordered_dict(function: Opaque, args: tuple[Any, ...]) -> Any:
    if not args:
        return OrderedDict()
    return _pairs(function, args, OrderedDict())


def _plain_dict(function: Opaque, args: tuple[Any, ...]) -> Any:
    # defaultdict(factory), Counter(mapping): the factory is dropped, the entries follow as items.
    given = tuple(arg for arg in args if not isinstance(arg, Opaque) and arg is not None)
    return _pairs(function, given, {}) if given else {}


def _pairs(function: Opaque, args: tuple[Any, ...], into: dict[Any, Any]) -> Any:
    (given,) = args
    listed = given.items() if isinstance(given, dict) else given
    if not isinstance(given, dict | list | tuple):
        return Opaque(function.module, function.name, args)
    for pair in listed:
        key, value = pair
        if not is_plain_key(key):
            return Opaque(function.module, function.name, args)
        into[key] = value
    return into


def _set(function: Opaque, args: tuple[Any, ...]) -> Any:
    # Protocols before 4 write a set as `set(list)`.
    items = args[0] if args else []
    if len(args) > 1 or not isinstance(items, list | tuple) or not all(is_plain_key(item) for item in items):
        return Opaque(function.module, function.name, args)
    return set(items) if function.name == "set" else frozenset(items)


_INTEGERS = {int}


def _size(function: Opaque, args: tuple[Any, ...]) -> Any:
    if len(args) == 1 and isinstance(args[0], tuple | list) and set(map(type, args[0])) <= _INTEGERS:
        return tuple(args[0])
    return Opaque(function.module, function.name, args)


def _device(function: Opaque, args: tuple[Any, ...]) -> Any:
    if args and isinstance(args[0], str):
        return ":".join(str(part) for part in args[:2])
    return Opaque(function.module, function.name, args)


def _encoded(function: Opaque, args: tuple[Any, ...]) -> Any:
    # Python 2 protocols write bytes as `_codecs.encode(text, "latin1")`.
    if len(args) == 2 and isinstance(args[0], str) and args[1] in ("latin1", "latin-1"):
        return args[0].encode("latin-1")
    return Opaque(function.module, function.name, args)


def _bytes(function: Opaque, args: tuple[Any, ...]) -> Any:
    # Never `bytes(10 ** 12)`: only what already is bytes.
    if not args:
        return b""
    if len(args) == 1 and isinstance(args[0], bytes):
        return args[0]
    return Opaque(function.module, function.name, args)


def _reconstructed(function: Opaque, args: tuple[Any, ...]) -> Any:
    # Protocols 0 and 1: `copyreg._reconstructor(class, base, value)`.
    if args and isinstance(args[0], Opaque) and args[0].args is None:
        return Opaque(args[0].module, args[0].name, args[2:])
    return Opaque(function.module, function.name, args)


_NUMPY_SCALARS = {
    "f8": "d", "f4": "f", "f2": "e", "i8": "q", "i4": "i", "i2": "h", "i1": "b",
    "u8": "Q", "u4": "I", "u2": "H", "u1": "B", "b1": "?",
}  # fmt: skip


def _numpy_scalar(function: Opaque, args: tuple[Any, ...]) -> Any:
    if len(args) == 2 and isinstance(args[0], Opaque) and isinstance(args[1], bytes):
        kind = args[0].args[0] if args[0].args else None
        order = args[0].state[1] if isinstance(args[0].state, tuple) and len(args[0].state) > 1 else "<"
        code = _NUMPY_SCALARS.get(kind) if isinstance(kind, str) else None
        if code is not None and order in ("<", ">", "|", "=") and struct.calcsize(code) == len(args[1]):
            return struct.unpack((">" if order == ">" else "<") + code, args[1])[0]
    return Opaque(function.module, function.name, args)


_BUILDERS: dict[tuple[str, str], Callable[[Opaque, tuple[Any, ...]], Any]] = {
    ("collections", "OrderedDict"): _ordered_dict,
    ("collections", "defaultdict"): _plain_dict,
    ("collections", "Counter"): _plain_dict,
    ("torch", "Size"): _size,
    ("torch", "device"): _device,
    ("_codecs", "encode"): _encoded,
    **{(module, "bytes"): _bytes for module in ("builtins", "__builtin__")},
    **{(module, name): _set for module in ("builtins", "__builtin__") for name in ("set", "frozenset")},
    **{(module, "_reconstructor"): _reconstructed for module in ("copyreg", "copy_reg")},
    **{(module, "scalar"): _numpy_scalar for module in ("numpy.core.multiarray", "numpy._core.multiarray")},
}
