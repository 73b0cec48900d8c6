"""A pickle machine that builds plain data and calls nothing.

Why not a subclass of ``pickle.Unpickler`` with a strict ``find_class``: its hooks cover names, not resources. A
30-byte pickle makes the C unpickler allocate 64 GiB for its memo, or hash a tuple of tuples for years, and neither
can be stopped from a hook. Scanning the opcodes first costs more than executing them here. This machine counts what
it does, holds its memo in a dict and looks at every key before it is hashed, and is fast enough: about 0.2 µs for an
opcode.

The opcodes are those of ``pickletools.opcodes``, protocols 0 to 5.
"""

from __future__ import annotations

import codecs
import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dspatch.checkpoint.inert import Opaque, call, is_plain_key

#: Bytes from which on a text is large.
_LARGE = 1 << 16


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one pickle may take. The defaults keep any file under 1 s and 200 MB on ordinary hardware.

    Attributes:
        size: bytes of the pickle. A model of 1,000 tensors needs some 0.2 MB.
        operations: opcodes.
        depth: containers inside each other; ``pickle`` itself cannot write deeper than about this.
        calls: calls of classes and functions: two or three for each tensor.
        names: references to classes and functions; ``pickle`` writes each one once and takes it from the memo then.
        containers: dicts and lists, those inside calls not counted.
        sets: sets and frozen sets, which weigh most of all empty objects.
        odd_keys: keys that are tuples, frozen sets or huge integers: their hashes can be made to collide.
        key_objects: objects inside all such keys together.
        number: bytes of one integer, or characters of one name.
    """

    size: int = 32 << 20
    operations: int = 2_000_000
    depth: int = 1_000
    calls: int = 400_000
    names: int = 50_000
    containers: int = 800_000
    sets: int = 200_000
    odd_keys: int = 2_000
    key_objects: int = 50_000
    number: int = 4_096


class BadPickle(Exception):
    """The pickle is broken or takes too much; the text completes "its pickle ...", ``kind`` is that of ``Damaged``."""

    def __init__(self, why: str, kind: str = "pickle") -> None:
        super().__init__(why)
        self.kind = kind


class Machine:
    """Executes one pickle.

    Args:
        data: the bytes.
        persistent: turns a persistent id (torch: a storage) into a value; raises ``BadPickle``.
        reduce: turns a call into a value, given the stand-in of the function and its arguments.
        limits: what it may take.

    Attributes:
        names: ``(module, name)`` of everything that the pickle refers to, in order of appearance.
        end: position behind the last byte, after ``run``.
    """

    def __init__(
        self,
        data: bytes,
        persistent: Callable[[Any], Any],
        reduce: Callable[[Opaque, tuple[Any, ...]], Any] = call,
        limits: Limits | None = None,
    ) -> None:
        self.data = data
        self.limits = limits or Limits()
        self.names: dict[tuple[str, str], None] = {}
        self.end = 0
        self._persistent, self._reduce = persistent, reduce
        self._most_calls = self.limits.calls
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._calls = self._references = self._containers = self._sets = self._odd_keys = self._key_objects = 0

    def run(self, start: int = 0) -> Any:
        """Execute the pickle that begins at ``start`` and return what it builds.

        Raises:
            BadPickle: it is broken or takes too much.
        """
        try:
            value = self._execute(start)
        except BadPickle:
            raise
        except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error, OverflowError) as error:
            raise BadPickle(f"is broken ({type(error).__name__}: {str(error)[:120]})") from error
        except (MemoryError, RecursionError) as error:
            raise BadPickle(f"takes too much ({type(error).__name__})", "limit") from error
        refuse_depth(value, self.limits.depth, self._odd_keys > 0)
        return value

    def _execute(self, pos: int) -> Any:  # noqa: PLR0912, PLR0915 - one loop over opcodes: calls would double its time
        data, stack, marks, memo = self.data, self._stack, self._marks, self._memo
        push, pop = stack.append, stack.pop
        called, persistent = self._called, self._persistent
        others, u32 = _OTHERS, struct.Struct("<I").unpack_from
        # Opcodes in the order of their frequency in files of torch. What puts a value on the stack falls through to the end,
        # where the opcode that memorises it, which nearly always follows, is done at once.
        for _ in range(self.limits.operations):
            op = data[pos]
            pos += 1
            if op == 0x68:  # BINGET
                push(memo[data[pos]])
                pos += 1
                continue
            if op == 0x4B:  # BININT1
                push(data[pos])
                pos += 1
                continue
            if op == 0x28:  # MARK
                marks.append(len(stack))
                continue
            if op == 0x52:  # REDUCE
                args = pop()
                value = stack[-1] = called(stack[-1], args)
            elif op == 0x58 or op == 0x8C:  # noqa: PLR1714 - BINUNICODE, SHORT_BINUNICODE; `in` takes longer
                if op == 0x58:
                    size = u32(data, pos)[0]
                    pos += 4
                else:
                    size = data[pos]
                    pos += 1
                end = pos + size
                if end > len(data):
                    raise BadPickle(f"announces a text of {size:,} bytes and ends before")
                # Large texts from where they lie: no second copy of their bytes.
                value = (
                    data[pos:end].decode("utf-8", "surrogatepass")
                    if size < _LARGE
                    else str(memoryview(data)[pos:end], "utf-8", "surrogatepass")
                )
                push(value)
                pos = end
            elif op == 0x74:  # TUPLE
                at = marks.pop()
                value = tuple(stack[at:])
                stack[at:] = (value,)
            elif op == 0x85:  # TUPLE1
                value = stack[-1] = (stack[-1],)
            elif op == 0x86:  # TUPLE2
                last = pop()
                value = stack[-1] = (stack[-1], last)
            elif op == 0x4A:  # BININT
                value = u32(data, pos)[0]
                push(value if value < 0x80000000 else value - 0x100000000)
                pos += 4
                continue
            elif op == 0x6A:  # LONG_BINGET
                push(memo[u32(data, pos)[0]])
                pos += 4
                continue
            elif op == 0x29:  # EMPTY_TUPLE
                push(())
                continue
            elif op == 0x89:  # NEWFALSE
                push(False)
                continue
            elif op == 0x51:  # BINPERSID
                stack[-1] = persistent(stack[-1])
                continue
            elif op == 0x4D:  # BININT2
                push(data[pos] | data[pos + 1] << 8)
                pos += 2
                continue
            elif op == 0x7D:  # EMPTY_DICT
                self._new_container()
                value = {}
                push(value)
            elif op == 0x75:  # SETITEMS
                at = marks.pop()
                items = stack[at:]
                del stack[at:]
                self._set_items(stack[-1], items)
                continue
            elif op == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
                continue
            elif op == 0x72:  # LONG_BINPUT
                memo[u32(data, pos)[0]] = stack[-1]
                pos += 4
                continue
            elif op == 0x71:  # BINPUT
                memo[data[pos]] = stack[-1]
                pos += 1
                continue
            elif op == 0x87:  # TUPLE3
                value = (stack[-3], stack[-2], stack[-1])
                stack[-3:] = (value,)
            elif op == 0x88:  # NEWTRUE
                push(True)
                continue
            elif op == 0x4E:  # NONE
                push(None)
                continue
            elif op == 0x5D:  # EMPTY_LIST
                self._new_container()
                value = []
                push(value)
            elif op == 0x2E:  # STOP
                self.end = pos
                return pop()
            else:
                handler = others.get(op)
                if handler is None:
                    raise BadPickle(f"has an unknown opcode {op:#04x} at byte {pos - 1:,}")
                pos = handler(self, pos)
                continue
            op = data[pos]
            if op == 0x72:  # LONG_BINPUT
                memo[u32(data, pos + 1)[0]] = value
                pos += 5
            elif op == 0x71:  # BINPUT
                memo[data[pos + 1]] = value
                pos += 2
            elif op == 0x94:  # MEMOIZE
                memo[len(memo)] = value
                pos += 1
        raise BadPickle(f"has more than {self.limits.operations:,} operations", "limit")

    def _called(self, function: Any, args: Any) -> Any:
        if type(function) is not Opaque or type(args) is not tuple:
            raise BadPickle(f"calls a {type(function).__name__} with a {type(args).__name__}")
        self._calls += 1
        if self._calls > self._most_calls:
            raise BadPickle(f"has more than {self.limits.calls:,} calls", "limit")
        made = self._reduce(function, args)
        if type(made) is set or type(made) is frozenset:
            self._new_set()
        return made

    def _set_items(self, target: Any, items: list[Any]) -> None:
        if len(items) % 2:
            raise BadPickle("sets a key without a value")
        if isinstance(target, dict):
            keys = items[::2]
            for key in keys:
                if type(key) is not str:
                    self._look_at_key(key)
            target.update(zip(keys, items[1::2], strict=True))
        elif isinstance(target, Opaque):
            target.items.extend(zip(items[::2], items[1::2], strict=True))
        else:
            raise BadPickle(f"sets keys on a {type(target).__name__}")

    def _extend(self, target: Any, items: list[Any]) -> None:
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, Opaque):
            target.items.extend(items)
        else:
            raise BadPickle(f"appends to a {type(target).__name__}")

    def _look_at_key(self, key: Any) -> None:
        """Refuse a key whose hash would take long, or that is one of many made to collide."""
        if is_plain_key(key):
            return
        self._odd_keys += 1
        if self._odd_keys > self.limits.odd_keys:
            raise BadPickle(f"has more than {self.limits.odd_keys:,} keys that are tuples or huge integers", "limit")
        todo = [key]
        while todo:
            one = todo.pop()
            self._key_objects += 1
            if isinstance(one, tuple | frozenset):
                todo.extend(one)
            if self._key_objects + len(todo) > self.limits.key_objects:
                raise BadPickle("has keys that take too long to hash (tuples of tuples)", "hostile")

    def _new_container(self) -> None:
        self._containers += 1
        if self._containers > self.limits.containers:
            raise BadPickle(f"has more than {self.limits.containers:,} dicts and lists", "limit")

    def _new_set(self) -> None:
        self._sets += 1
        if self._sets > self.limits.sets:
            raise BadPickle(f"has more than {self.limits.sets:,} sets", "limit")

    def _popped_to_mark(self) -> list[Any]:
        at = self._marks.pop()
        items = self._stack[at:]
        del self._stack[at:]
        return items

    def _take(self, pos: int, size: int, what: str) -> bytes:
        if size < 0 or pos + size > len(self.data):
            raise BadPickle(f"announces {what} of {size:,} bytes and ends before")
        return self.data[pos : pos + size]

    def _line(self, pos: int, limit: int | None = None) -> tuple[bytes, int]:
        most = limit or self.limits.number
        end = self.data.find(b"\n", pos, pos + most + 1)
        if end < 0:
            raise BadPickle(f"has a line of more than {most:,} bytes, or without an end")
        return self.data[pos:end], end + 1

    def _name(self, module: str, name: str) -> Opaque:
        if len(module) > self.limits.number or len(name) > self.limits.number:
            raise BadPickle("has a name of absurd length", "hostile")
        self._references += 1
        if self._references > self.limits.names:
            raise BadPickle(f"refers to classes and functions more than {self.limits.names:,} times", "limit")
        self.names.setdefault((module, name))
        return Opaque(module, name)

    # Opcodes off the hot path: (machine, position behind the opcode) -> position behind its argument.

    def op_proto(self, pos: int) -> int:
        """PROTO"""
        if self.data[pos] > 5:
            raise BadPickle(f"claims protocol {self.data[pos]}; Python knows 0 to 5")
        if pos != 1 and self.data[pos - 2] != 0x2E:
            raise BadPickle("declares its protocol a second time, in the middle", "hostile")
        return pos + 1

    def op_frame(self, pos: int) -> int:
        """FRAME"""
        (size,) = struct.unpack_from("<Q", self.data, pos)
        self._take(pos + 8, size, "a frame")
        return pos + 8

    def op_global(self, pos: int) -> int:
        """GLOBAL"""
        module, pos = self._line(pos)
        name, pos = self._line(pos)
        self._stack.append(self._name(module.decode("utf-8"), name.decode("utf-8")))
        return pos

    def op_stack_global(self, pos: int) -> int:
        """STACK_GLOBAL"""
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise BadPickle("names something by an object that is no text", "hostile")
        self._stack.append(self._name(module, name))
        return pos

    def op_inst(self, pos: int) -> int:
        """INST"""
        module, pos = self._line(pos)
        name, pos = self._line(pos)
        args = tuple(self._popped_to_mark())
        self._stack.append(self._called(self._name(module.decode("utf-8"), name.decode("utf-8")), args))
        return pos

    def op_obj(self, pos: int) -> int:
        """OBJ"""
        kind, *args = self._popped_to_mark()
        self._stack.append(self._called(kind, tuple(args)))
        return pos

    def op_newobj(self, pos: int) -> int:
        """NEWOBJ"""
        args, kind = self._stack.pop(), self._stack.pop()
        self._stack.append(self._called(kind, args))
        return pos

    def op_newobj_ex(self, pos: int) -> int:
        """NEWOBJ_EX"""
        keywords, args, kind = self._stack.pop(), self._stack.pop(), self._stack.pop()
        made = self._called(kind, args)
        if isinstance(made, Opaque) and keywords:
            made.items.append(keywords)
        self._stack.append(made)
        return pos

    def op_build(self, pos: int) -> int:
        """BUILD"""
        state = self._stack.pop()
        target = self._stack[-1]
        # torch hangs `_metadata` on ordered dicts; attributes of plain data are no state of the training.
        if isinstance(target, Opaque):
            target.state = state
        return pos

    def op_append(self, pos: int) -> int:
        """APPEND"""
        value = self._stack.pop()
        self._extend(self._stack[-1], [value])
        return pos

    def op_appends(self, pos: int) -> int:
        """APPENDS"""
        items = self._popped_to_mark()
        self._extend(self._stack[-1], items)
        return pos

    def op_setitem(self, pos: int) -> int:
        """SETITEM"""
        value, key = self._stack.pop(), self._stack.pop()
        self._set_items(self._stack[-1], [key, value])
        return pos

    def op_list(self, pos: int) -> int:
        """LIST"""
        self._stack.append(self._popped_to_mark())
        return pos

    def op_dict(self, pos: int) -> int:
        """DICT"""
        items = self._popped_to_mark()
        made: dict[Any, Any] = {}
        self._set_items(made, items)
        self._stack.append(made)
        return pos

    def op_empty_set(self, pos: int) -> int:
        """EMPTY_SET"""
        self._new_set()
        self._stack.append(set())
        return pos

    def op_additems(self, pos: int) -> int:
        """ADDITEMS"""
        items = self._popped_to_mark()
        target = self._stack[-1]
        if isinstance(target, Opaque):
            target.items.extend(items)
            return pos
        if not isinstance(target, set):
            raise BadPickle(f"adds items to a {type(target).__name__}")
        for item in items:
            self._look_at_key(item)
            target.add(item)
        return pos

    def op_frozenset(self, pos: int) -> int:
        """FROZENSET"""
        self._new_set()
        items = self._popped_to_mark()
        for item in items:
            self._look_at_key(item)
        self._stack.append(frozenset(items))
        return pos

    def op_pop(self, pos: int) -> int:
        """POP"""
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()
        return pos

    def op_pop_mark(self, pos: int) -> int:
        """POP_MARK"""
        self._popped_to_mark()
        return pos

    def op_dup(self, pos: int) -> int:
        """DUP"""
        self._stack.append(self._stack[-1])
        return pos

    def op_put(self, pos: int) -> int:
        """PUT"""
        line, pos = self._line(pos)
        self._memo[_whole(line)] = self._stack[-1]
        return pos

    def op_get(self, pos: int) -> int:
        """GET"""
        line, pos = self._line(pos)
        self._stack.append(self._memo[_whole(line)])
        return pos

    def op_int(self, pos: int) -> int:
        """INT"""
        line, pos = self._line(pos)
        self._stack.append({b"00": False, b"01": True}[line] if line in (b"00", b"01") else _whole(line))
        return pos

    def op_long(self, pos: int) -> int:
        """LONG"""
        line, pos = self._line(pos)
        self._stack.append(_whole(line.rstrip(b"L")))
        return pos

    def op_long1(self, pos: int) -> int:
        """LONG1"""
        size = self.data[pos]
        self._stack.append(int.from_bytes(self._take(pos + 1, size, "a number"), "little", signed=True))
        return pos + 1 + size

    def op_long4(self, pos: int) -> int:
        """LONG4"""
        size: int = struct.unpack_from("<i", self.data, pos)[0]
        if size > self.limits.number:
            raise BadPickle(f"holds a number of {size:,} bytes", "limit")
        self._stack.append(int.from_bytes(self._take(pos + 4, size, "a number"), "little", signed=True))
        return pos + 4 + size

    def op_float(self, pos: int) -> int:
        """FLOAT"""
        line, pos = self._line(pos)
        self._stack.append(float(line))
        return pos

    def op_binfloat(self, pos: int) -> int:
        """BINFLOAT"""
        self._stack.append(struct.unpack_from(">d", self.data, pos)[0])
        return pos + 8

    def op_string(self, pos: int) -> int:
        """STRING"""
        line, pos = self._line(pos, self.limits.size)
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
            raise BadPickle("has a text without quotes")
        decoded: bytes = codecs.escape_decode(line[1:-1])[0]
        self._stack.append(decoded.decode("latin-1"))
        return pos

    def op_unicode(self, pos: int) -> int:
        """UNICODE"""
        line, pos = self._line(pos, self.limits.size)
        self._stack.append(line.decode("raw-unicode-escape"))
        return pos

    def op_persid(self, pos: int) -> int:
        """PERSID"""
        line, pos = self._line(pos)
        self._stack.append(self._persistent(line.decode("utf-8")))
        return pos

    def op_refused(self, pos: int) -> int:
        """EXT1, EXT2, EXT4, NEXT_BUFFER, READONLY_BUFFER"""
        raise BadPickle("refers to objects outside the file (extension registry or out-of-band buffer)", "hostile")


def _sized(width: str, text: str | None) -> Callable[[Machine, int], int]:
    """Handler of an opcode with a length in front: struct code of the length, encoding of the text (None: bytes)."""
    head = struct.Struct("<" + width)

    def handler(machine: Machine, pos: int) -> int:
        (size,) = head.unpack_from(machine.data, pos)
        if text and _LARGE <= size <= len(machine.data) - pos - head.size:
            machine._stack.append(str(memoryview(machine.data)[pos + head.size :][:size], text, "surrogatepass"))
            return pos + head.size + int(size)
        raw = machine._take(pos + head.size, size, "a text" if text else "data")
        machine._stack.append(raw.decode(text, "surrogatepass") if text else raw)
        return pos + head.size + int(size)

    return handler


def _whole(line: bytes) -> int:
    # The limit on line length keeps `int` off its quadratic path.
    return int(line)


_OTHERS: dict[int, Callable[[Machine, int], int]] = {
    0x80: Machine.op_proto, 0x95: Machine.op_frame,
    0x63: Machine.op_global, 0x93: Machine.op_stack_global, 0x69: Machine.op_inst, 0x6F: Machine.op_obj,
    0x81: Machine.op_newobj, 0x92: Machine.op_newobj_ex, 0x62: Machine.op_build,
    0x61: Machine.op_append, 0x65: Machine.op_appends, 0x73: Machine.op_setitem, 0x6C: Machine.op_list,
    0x64: Machine.op_dict, 0x8F: Machine.op_empty_set, 0x90: Machine.op_additems, 0x91: Machine.op_frozenset,
    0x30: Machine.op_pop, 0x31: Machine.op_pop_mark, 0x32: Machine.op_dup, 0x70: Machine.op_put, 0x67: Machine.op_get,
    0x49: Machine.op_int, 0x4C: Machine.op_long, 0x8A: Machine.op_long1, 0x8B: Machine.op_long4,
    0x46: Machine.op_float, 0x47: Machine.op_binfloat, 0x53: Machine.op_string, 0x56: Machine.op_unicode,
    0x50: Machine.op_persid,
    0x54: _sized("i", "latin-1"), 0x55: _sized("B", "latin-1"), 0x8D: _sized("Q", "utf-8"),
    0x42: _sized("I", None), 0x43: _sized("B", None), 0x8E: _sized("Q", None), 0x96: _sized("Q", None),
    **dict.fromkeys((0x82, 0x83, 0x84, 0x97, 0x98), Machine.op_refused),
}  # fmt: skip


def children(value: Any) -> list[Any]:
    """What one value of a tree contains directly; a stand-in contains its arguments, its state and its items."""
    if isinstance(value, dict):
        return [*value.values(), *(key for key in value if type(key) is tuple)]
    if isinstance(value, list | tuple | set | frozenset):
        return [*value]
    if isinstance(value, Opaque):
        return [value.args, value.state, *value.items] if value._items else [value.args, value.state]
    return []


#: Every type that this machine and the builders make and that contains others.
_CONTAINERS = frozenset((dict, OrderedDict, list, tuple, set, frozenset, Opaque))


def refuse_depth(root: Any, limit: int, odd_keys: bool = True) -> None:
    """Raise ``BadPickle`` when containers lie deeper inside each other than ``limit``. Visits every container once.

    Args:
        root: the tree.
        limit: levels.
        odd_keys: keys of dicts may be containers, too.
    """
    seen: set[int] = set()
    trail = [iter([root])]
    while trail:
        for value in trail[-1]:
            if id(value) in seen:
                continue
            inside = _containers_in(value, odd_keys)
            if inside:
                seen.add(id(value))
                trail.append(iter(inside))
                break
        else:
            trail.pop()
        if len(trail) > limit:
            raise BadPickle(f"nests deeper than {limit:,} levels", "limit")


def _containers_in(value: Any, odd_keys: bool) -> list[Any]:
    kind = type(value)
    if kind is dict or kind is OrderedDict:
        found = [one for one in value.values() if type(one) in _CONTAINERS]
        return found + [key for key in value if type(key) in _CONTAINERS] if odd_keys else found
    if kind is Opaque:
        return [one for one in children(value) if type(one) in _CONTAINERS]
    return [one for one in value if type(one) in _CONTAINERS] if kind in _CONTAINERS else []
