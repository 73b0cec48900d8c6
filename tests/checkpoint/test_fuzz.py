"""Mutated files: an error or the truth, never another exception, and never a changed byte that goes unseen.

`make fuzz` is the long lane.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspatch.checkpoint.damage import Damaged
from dspatch.checkpoint.shard import facts_of
from dspatch.checkpoint.unpickle import read_tree, walk
from tests.checkpoint import hostile
from tests.checkpoint.conftest import Saved
from tests.checkpoint.test_real_files import everything

FILES = int(os.environ.get("FUZZ_FILES", "300"))


@pytest.fixture(scope="module")
def originals(saved: Saved) -> list[bytes]:
    """Files of every kind, and the smallest one that torch writes."""
    folders = (saved("newest", "z2-rich"), saved("oldest", "z3-fp16"), saved("newest", "z0-fp32"))
    paths = [path for folder in folders for path in sorted(folder.glob("global_step3/*.pt"))]
    return [hostile.torch_file(), *(path.read_bytes() for path in paths)]


@pytest.mark.timeout(3600)
def test_a_mutated_file_is_an_error_or_unchanged(originals: list[bytes], tmp_path: Path) -> None:
    path, chance = tmp_path / "x.pt", random.Random(20_26)
    for _ in range(FILES):
        raw = chance.choice(originals)
        changed = mutated(raw, chance)
        path.write_bytes(changed)
        try:
            facts_of(read_tree(path))
            everything(path)
        except Damaged:
            continue
        assert changed == raw


@settings(max_examples=FILES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_any_bytes_as_a_pickle_are_an_error_or_a_tree(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    hostile.write_pickle(path, data + b".")
    try:
        tree = read_tree(path)
    except Damaged as error:
        assert error.why
        return
    facts_of(tree)
    list(walk(tree.root))


_OPCODES = b"(0123.FGIJKLMNPQRSTUVXabcdeghijlopqrstu})]\x80\x81\x85\x86\x87\x88\x89\x8a\x8c\x8f\x90\x91\x92\x93\x94"


@settings(max_examples=FILES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(st.sampled_from([bytes([op]) for op in _OPCODES] + [
    b"K\x01", b"h\x00", b"q\x00", b"cos\nsystem\n", b"X\x01\x00\x00\x00a", b"ccollections\nOrderedDict\n", b"}",
    b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nFloatStorage\n", b"U\x07storage", b"\x8c\x010", b")R",
]), max_size=60))  # fmt: skip
def test_any_sequence_of_opcodes_is_an_error_or_a_tree(operations: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    hostile.write_pickle(path, b"\x80\x02" + b"".join(operations) + b".")
    try:
        tree = read_tree(path)
    except Damaged:
        return
    facts_of(tree)


def mutated(raw: bytes, chance: random.Random) -> bytes:
    """One change, as disks, networks and people make them; by chance it may change nothing."""
    changed = bytearray(raw)
    kind = chance.choice(("flip", "flip", "byte", "cut", "insert", "delete", "swap", "zero", "repeat"))
    at = chance.randrange(len(raw))
    length = chance.choice((1, 2, 4, 8, 64, 512))
    if kind == "flip":
        changed[at] ^= 1 << chance.randrange(8)
    elif kind == "byte":
        changed[at] = chance.randrange(256)
    elif kind == "cut":
        del changed[at:]
    elif kind == "insert":
        changed[at:at] = chance.randbytes(length)
    elif kind == "delete":
        del changed[at : at + length]
    elif kind == "zero":
        changed[at : at + length] = bytes(len(changed[at : at + length]))
    elif kind == "repeat":
        changed[at:at] = changed[at : at + length]
    else:
        other = chance.randrange(len(raw))
        one, two = changed[at : at + length], changed[other : other + length]
        changed[at : at + len(two)] = two
        changed[other : other + len(one)] = one
    return bytes(changed)
