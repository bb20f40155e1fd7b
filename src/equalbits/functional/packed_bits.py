"""Signs and booleans as bits, eight per byte: all that the backward pass needs of a binary input.

A matrix of (row, column) is packed along its columns, the first column in the lowest bit; the last byte of a row is
padded with zeros. :func:`pack_by_shifts` and :func:`unpack_by_shifts` define the format. A CPU uses numpy, a GPU the
kernels of ``kernels/pack_bits.py``.
"""

import functools
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as nnf

from equalbits.functional.execution_mode import is_plain, kernels_for

_gpu_for = functools.partial(kernels_for, "pack_bits")
#: Parameters of an operator that takes a :class:`BitLayout`.
LAYOUT = "SymInt[] shape, bool channels_last"
# Lets a compiler pass channels-last tensors without copying them to the traced layout; torch before 2.8 copies.
_ANY_LAYOUT: dict[str, Any] = {"mutates_args": ()}
if "tags" in signature(torch.library.custom_op).parameters:
    _ANY_LAYOUT["tags"] = (torch.Tag.flexible_layout,)


class BitLayout(NamedTuple):
    """Shape and memory format of a tensor that is kept as bits."""

    shape: tuple[int, ...]
    channels_last: bool

    @classmethod
    def of(cls, tensor: Tensor) -> "BitLayout":
        """Return the layout in which ``tensor`` is packed; other memory formats become contiguous."""
        strided = tensor.dim() == 4 and not tensor.is_contiguous()
        return cls(tuple(tensor.shape), strided and tensor.is_contiguous(memory_format=torch.channels_last))

    def pack(self, bits: Tensor) -> Tensor:
        """Pack a boolean tensor of this layout."""
        if self.channels_last:
            rows = bits.permute(0, 2, 3, 1).flatten(0, 2)
        else:
            rows = bits.flatten(1) if bits.dim() > 1 else bits.reshape(1, -1)
        return pack_bits(rows)

    def unpack(self, packed: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the packed tensor: True and False if ``dtype`` is bool, else +1 and −1."""
        if self.channels_last:
            images, channels, height, width = self.shape
            return unpack_bits(packed, channels, dtype).view(images, height, width, channels).permute(0, 3, 1, 2)
        return unpack_bits(packed, self.columns(), dtype).view(self.shape)

    def columns(self) -> int:
        """Return the number of columns of the packed matrix."""
        if self.channels_last:
            return self.shape[1]
        columns = 1
        for size in self.shape[1:] if len(self.shape) > 1 else self.shape:
            columns *= size
        return columns

    def fits(self, tensor: Tensor) -> bool:
        """Return whether a tensor of this shape has its memory in the order of the packed matrix."""
        form = torch.channels_last if self.channels_last else torch.contiguous_format
        return tensor.is_contiguous(memory_format=form)


class SignBits(NamedTuple):
    """±1 values as bits; through ``link``, zeros without memory, a gradient of a gradient reaches the values."""

    packed: Tensor
    layout: BitLayout
    link: Tensor | None = None


def keeps_bits(tensor: Tensor) -> bool:
    """Return whether a tensor may be kept as bits: in plain or compiled execution, not traced or transformed."""
    if torch.compiler.is_compiling():
        return not _is_exporting() and not torch._C._are_functorch_transforms_active()
    return is_plain(tensor)


def _is_exporting() -> bool:
    """Return whether torch.export traces this code.

    Read from the flag itself: in compiled code of some versions, such as torch 2.11, ``is_exporting()`` is always True.
    """
    return getattr(torch.compiler, "_is_exporting_flag", False)  # torch before 2.7 has no such flag


def pack_bits(bits: Tensor) -> Tensor:
    """Pack a boolean matrix into bytes, eight columns each.

    >>> pack_bits(torch.tensor([[True, True, False, False, False, False, False, False, True]]))
    tensor([[3, 1]], dtype=torch.uint8)
    """
    return _pack(bits) if is_plain(bits) else _pack_op(bits)


def unpack_bits(packed: Tensor, columns: int, dtype: torch.dtype = torch.bool) -> Tensor:
    """Invert :func:`pack_bits`: True and False if ``dtype`` is bool, else +1 and −1.

    >>> unpack_bits(torch.tensor([[5]], dtype=torch.uint8), 3, torch.float32)
    tensor([[ 1., -1.,  1.]])
    """
    unpack = _unpack if is_plain(packed) else _unpack_op
    values: Tensor = unpack(packed, columns, dtype)
    return values


def sign_bits(inputs: Tensor, layout: BitLayout, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return the signs in ``dtype``, and the bits of ``x ≥ 0`` and of ``|x| < 1``, without gradient."""
    gpu = _gpu_for(inputs)
    if gpu and layout.fits(inputs):
        return gpu.sign(inputs, layout.columns(), dtype)  # type: ignore[no-any-return]
    positive = inputs >= 0
    return torch.where(positive, 1.0, -1.0).to(dtype), layout.pack(positive), layout.pack(inputs.abs() < 1)


def mask_by_bits(gradient: Tensor, packed: Tensor, layout: BitLayout, dtype: torch.dtype) -> Tensor:
    """Return the gradient in ``dtype``, where a bit is set, and 0 elsewhere."""
    if torch.compiler.is_compiling():
        passed: Tensor = _masked_op(gradient.to(dtype), packed, *layout)
        return passed
    gpu = _gpu_for(gradient)
    if gpu and layout.fits(gradient) and not torch.is_grad_enabled():
        return gpu.mask(gradient, packed, layout.columns(), dtype)  # type: ignore[no-any-return]
    return gradient.to(dtype) * layout.unpack(packed, torch.bool)


def _masked(gradient: Tensor, packed: Tensor, shape: Sequence[int], channels_last: bool) -> Tensor:
    bits = BitLayout(tuple(shape), channels_last).unpack(packed, torch.bool)
    return in_format(gradient * bits, channels_last)


def pack_by_shifts(bits: Tensor) -> Tensor:
    """Pack in torch's own operations: the slow twin."""
    padded = nnf.pad(bits.to(torch.uint8), (0, -bits.shape[1] % 8))
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (padded.view(len(padded), padded.shape[1] // 8, 8) << places).sum(dim=2, dtype=torch.uint8)


def unpack_by_shifts(packed: Tensor, columns: int, dtype: torch.dtype = torch.bool) -> Tensor:
    """Unpack in torch's own operations: the slow twin."""
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    bits = ((packed[:, :, None] >> places) & 1).flatten(1)[:, :columns]
    return bits.bool().contiguous() if dtype == torch.bool else bits.to(dtype).mul(2).sub(1).contiguous()


def _pack(bits: Tensor) -> Tensor:
    gpu = _gpu_for(bits)
    if gpu:
        return gpu.pack(bits)  # type: ignore[no-any-return]
    if bits.device.type == "cpu":
        return torch.from_numpy(np.ascontiguousarray(np.packbits(bits.numpy(), axis=1, bitorder="little")))
    return pack_by_shifts(bits)


def _unpack(packed: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    gpu = _gpu_for(packed)
    if gpu:
        return gpu.unpack(packed, columns, dtype)  # type: ignore[no-any-return]
    if packed.device.type == "cpu" and dtype == torch.bool:
        bits = np.unpackbits(packed.numpy(), axis=1, count=columns, bitorder="little")
        return torch.from_numpy(bits).view(torch.bool)
    if packed.device.type == "cpu":  # eight values per byte by a table: one pass over memory
        rows = _table(dtype).index_select(0, packed.flatten().int()).view(len(packed), 8 * packed.shape[1])
        return rows[:, :columns].contiguous()
    return unpack_by_shifts(packed, columns, dtype)


def operator(name: str, schema: str, function: Callable[..., object]) -> Any:
    """Return a function of torch's operations as an operator; a compiler infers shapes by the function itself."""
    made = torch.library.custom_op(f"equalbits::{name}", function, schema=schema, **_ANY_LAYOUT)
    made.register_fake(function)
    return made


def in_format(tensor: Tensor, channels_last: bool) -> Tensor:
    """Return a tensor in channels last or contiguous: the layout that the compiler assumes."""
    strided = channels_last and tensor.dim() == 4
    return tensor.contiguous(memory_format=torch.channels_last if strided else torch.contiguous_format)


@functools.cache
def _table(dtype: torch.dtype) -> Tensor:
    """Return the eight values of every byte."""
    return unpack_by_shifts(torch.arange(256, dtype=torch.uint8, device="cpu")[:, None], 8, dtype)


_pack_op = torch.library.custom_op("equalbits::pack_bits", _pack, mutates_args=(), schema="(Tensor bits) -> Tensor")
_unpack_op = torch.library.custom_op(
    "equalbits::unpack_bits",
    _unpack,
    mutates_args=(),
    schema="(Tensor packed, int columns, ScalarType dtype) -> Tensor",
)
_pack_op.register_fake(pack_by_shifts)
_unpack_op.register_fake(unpack_by_shifts)
_masked_op = operator("masked_gradient", f"(Tensor gradient, Tensor packed, {LAYOUT}) -> Tensor", _masked)
