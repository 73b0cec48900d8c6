"""One live tensor against one tensor of a file.

First by checksum: every record of a zip-format file carries the CRC-32 of its bytes in the file's index, so live bytes
with the same checksum are what was written, bit rot included, and no tensor data is read. Where live bytes do not map
onto a whole record, and wherever a checksum differs, the bytes themselves are compared, parameter by parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dspatch.checkpoint.content import pieces, read_bytes
from dspatch.checkpoint.tensors import TensorRef
from dspatch.live.reading import Fragment
from dspatch.verdict import progress
from dspatch.verdict.memory import first_difference, flat_bytes, same_bytes, storage_bytes

if TYPE_CHECKING:
    import torch

#: Bytes of a file that are held while they are compared.
_READ_AT_ONCE = 4 << 20


@dataclass(slots=True)
class Check:
    """A live tensor, and the tensor of a file that it must be equal to.

    Attributes:
        component, label, what: for messages; ``what`` is such as ``"exp_avg"``.
        role: the file.
        tensor: the live tensor.
        numel: leading elements that count.
        fragments: parameters inside; what none of them covers is padding and may differ.
        ref: the tensor in the file.
        start: first element in the file, for a part of a larger tensor; None: the tensor is the whole one.
        equal: the answer; None while there is none.
        differing: names of the fragments that differ.
        detail: the first difference, in words.
        suspect: the live bytes have another checksum than the file's record should have.
    """

    component: str
    label: str
    what: str
    role: str
    tensor: torch.Tensor
    numel: int
    fragments: tuple[Fragment, ...]
    ref: TensorRef
    start: int | None = None
    equal: bool | None = None
    differing: list[str] = field(default_factory=list)
    detail: str = ""
    suspect: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the elements that count."""
        return self.numel * self.tensor.element_size()


def dtype_of(tensor: torch.Tensor) -> str:
    """``"bfloat16"`` for ``torch.bfloat16``."""
    return str(tensor.dtype).removeprefix("torch.")


def wrong_size(check: Check) -> str:
    """Why the file's tensor cannot be the live one's, in words; empty when the sizes fit."""
    have, want = check.ref.numel - (check.start or 0), check.numel
    if have in (want, check.tensor.numel()) or (check.start is not None and have >= want):
        return ""
    return f"{want:,} elements live, {have:,} in the file"


def checksum_candidate(check: Check) -> torch.Tensor | None:
    """The run of live bytes whose CRC-32 must be that of the file's record, or None when there is none."""
    tensor, ref = check.tensor, check.ref
    if ref.record.crc32 is None or check.start is not None or dtype_of(tensor) != ref.dtype or not ref.numel:
        return None
    if ref.is_whole_record and tensor.is_contiguous() and ref.numel <= tensor.numel():
        return flat_bytes(tensor)[: ref.nbytes]
    # A view into a larger storage was written with the whole storage. Equal storages make equal views.
    alike = tuple(tensor.stride()) == ref.stride or (tensor.is_contiguous() and ref.is_contiguous)
    whole = storage_bytes(tensor)
    if alike and whole.numel() == ref.record.size and int(tensor.storage_offset()) == ref.storage_offset:
        return whole
    return None


def compare_directly(check: Check) -> None:
    """Compare the bytes with those in the file, and set ``equal``, ``differing`` and ``detail``.

    A file tensor of another dtype is cast to the live one's first, which is what ``Tensor.copy_`` and torch's
    ``Optimizer.load_state_dict`` do with it.
    """
    live, size = flat_bytes(check.tensor), check.tensor.element_size()
    fragments = check.fragments or (Fragment(check.label, 0, check.numel),)
    names: dict[str, None] = {}
    position = 0
    progress.current.expect(check.nbytes)
    for filed in _file_pieces(check):
        here = live[position * size : position * size + filed.numel()].cpu()
        if not same_bytes(here, filed):
            _name_differences(check, fragments, position, here, filed, names)
        position += filed.numel() // size
        progress.current.add(filed.numel())
    check.differing = list(names)
    check.equal = not names


def _name_differences(
    check: Check, fragments: Sequence[Fragment], position: int, here: torch.Tensor, filed: torch.Tensor,
    names: dict[str, None],
) -> None:  # fmt: skip
    size = check.tensor.element_size()
    end = position + here.numel() // size
    for one in fragments:
        low, high = max(one.start, position), min(one.start + one.numel, end)
        if low >= high or one.name in names:
            continue
        cut = slice((low - position) * size, (high - position) * size)
        if not same_bytes(here[cut], filed[cut]):
            names[one.name] = None
            if not check.detail:
                check.detail = _detail(check, one, low, here[cut], filed[cut])


def _detail(check: Check, fragment: Fragment, low: int, here: torch.Tensor, filed: torch.Tensor) -> str:
    dtype, size = check.tensor.dtype, check.tensor.element_size()
    element = first_difference(here, filed) // size
    cut = slice(element * size, (element + 1) * size)
    live, file = here[cut].clone().view(dtype).item(), filed[cut].clone().view(dtype).item()
    number = low - fragment.start + element
    return f"{check.what} of {fragment.name} differs first in its element {number} here: {live!r}, in the file {file!r}"


def _file_pieces(check: Check) -> Iterator[torch.Tensor]:
    """The file's elements as bytes of the live dtype, in pieces of whole elements."""
    import torch

    ref, dtype = check.ref, getattr(torch, check.ref.dtype)
    if not ref.is_contiguous:
        yield _flat_from_views(ref, dtype).to(check.tensor.dtype).view(torch.uint8)[: check.nbytes]
        return
    start = check.start or 0
    for piece in pieces(ref, start, min(check.numel, ref.numel - start), _READ_AT_ONCE):
        filed = torch.frombuffer(piece, dtype=dtype)
        yield (filed if dtype == check.tensor.dtype else filed.to(check.tensor.dtype)).view(torch.uint8)


def _flat_from_views(ref: TensorRef, dtype: torch.dtype) -> torch.Tensor:
    """A tensor with strides of its own, in the order of its indices; held whole, since such tensors are rare."""
    import torch

    span = ref.storage_offset + 1 + sum((n - 1) * step for n, step in zip(ref.shape, ref.stride, strict=True))
    flat = TensorRef(ref.path, ref.storage, ref.dtype, (span,), (1,), 0)
    storage = torch.frombuffer(read_bytes(flat), dtype=dtype)
    return storage.as_strided(ref.shape, ref.stride, ref.storage_offset).reshape(-1).contiguous()


def number_in(ref: TensorRef) -> float | int | bool | list[float]:
    """The value of a tensor with one element, or the values of a small one."""
    import torch

    values = torch.frombuffer(read_bytes(ref), dtype=getattr(torch, ref.dtype)).tolist()
    return values[0] if len(values) == 1 else values


def is_zero(tensor: torch.Tensor, fragments: Iterable[Fragment], numel: int) -> bool:
    """Whether every element that belongs to a parameter is zero, -0.0 included."""
    flat = tensor.detach().reshape(-1)
    spans = [(one.start, one.numel) for one in fragments] or [(0, numel)]
    return not any(bool(flat.narrow(0, start, count).any()) for start, count in spans)
