"""Triton kernels of :mod:`equalbits.functional.packed_bits`: one pass over memory each way."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803 (compile-time settings of a kernel are in capitals)

import torch
import triton
import triton.language as tl
from torch import Tensor

from equalbits.functional.kernels.sizes import cdiv

# Packed bytes per program: 32 values for each thread of 4 warps. Nothing to fuse; the setting silences a warning.
_LAUNCH = {"BYTES": 512, "enable_fp_fusion": False}


def pack(bits: Tensor) -> Tensor:
    """Compute :func:`equalbits.functional.packed_bits.pack_by_shifts`."""
    rows, columns = bits.shape
    packed = bits.new_empty((rows, cdiv(columns, 8)), dtype=torch.uint8)
    if packed.numel():
        with torch.cuda.device_of(bits):
            pack_kernel[(cdiv(packed.numel(), _LAUNCH["BYTES"]),)](
                bits.contiguous().view(torch.uint8), packed, packed.numel(), columns, **_LAUNCH
            )
    return packed


def unpack(packed: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """Compute :func:`equalbits.functional.packed_bits.unpack_by_shifts`."""
    values = packed.new_empty((packed.shape[0], columns), dtype=dtype)
    signs = dtype != torch.bool
    if values.numel():
        with torch.cuda.device_of(packed):
            unpack_kernel[(cdiv(packed.numel(), _LAUNCH["BYTES"]),)](
                packed.contiguous(),
                values if signs else values.view(torch.uint8),
                packed.numel(),
                columns,
                SIGNS=signs,
                **_LAUNCH,
            )
    return values


def sign(inputs: Tensor, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Compute :func:`equalbits.functional.packed_bits.sign_bits` of a matrix of ``columns``, in any shape."""
    signs = torch.empty_like(inputs, dtype=dtype)
    shape = (inputs.numel() // max(1, columns), cdiv(columns, 8))
    positive = torch.empty(shape, dtype=torch.uint8, device=inputs.device)
    near = torch.empty(shape, dtype=torch.uint8, device=inputs.device)
    count = shape[0] * shape[1]
    if count:
        with torch.cuda.device_of(inputs):
            sign_kernel[(cdiv(count, _LAUNCH["BYTES"]),)](inputs, signs, positive, near, count, columns, **_LAUNCH)
    return signs, positive, near


def mask(gradient: Tensor, packed: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """Compute :func:`equalbits.functional.packed_bits.mask_by_bits` of a matrix of ``columns``, in any shape."""
    masked = torch.empty_like(gradient, dtype=dtype)
    count = packed.numel()
    if count:
        with torch.cuda.device_of(gradient):
            mask_kernel[(cdiv(count, _LAUNCH["BYTES"]),)](gradient, packed, masked, count, columns, **_LAUNCH)
    return masked


@triton.jit
def _places(count, columns, BYTES: tl.constexpr):
    """Return the bytes of a program, the places of their bits in the matrix, and the bits that exist."""
    byte = tl.program_id(0).to(tl.int64) * BYTES + tl.arange(0, BYTES)
    wide = (columns + 7) // 8
    row = byte // wide
    column = ((byte - row * wide) * 8)[:, None] + tl.arange(0, 8)[None, :]
    return byte, row[:, None] * columns + column, (byte < count)[:, None] & (column < columns)


@triton.jit
def _wide(values):
    """Return half-precision values as float32."""
    if values.dtype == tl.float16:
        values = values.to(tl.float32)
    if values.dtype == tl.bfloat16:  # apart: Triton 3.2 cannot compile `or` here
        values = values.to(tl.float32)
    return values


@triton.jit
def pack_kernel(bits, packed, count, columns, BYTES: tl.constexpr):
    """Pack eight booleans into each byte."""
    byte, place, inside = _places(count, columns, BYTES)
    loaded = tl.load(bits + place, mask=inside, other=0).to(tl.int32)
    value = tl.sum(loaded << tl.arange(0, 8)[None, :], axis=1)
    tl.store(packed + byte, value.to(tl.uint8), mask=byte < count)


@triton.jit
def unpack_kernel(packed, values, count, columns, SIGNS: tl.constexpr, BYTES: tl.constexpr):
    """Write eight values from each byte: ±1, or 1 and 0."""
    byte, place, inside = _places(count, columns, BYTES)
    loaded = tl.load(packed + byte, mask=byte < count, other=0).to(tl.int32)
    bit = (loaded[:, None] >> tl.arange(0, 8)[None, :]) & 1
    value = 2 * bit - 1 if SIGNS else bit
    tl.store(values + place, value.to(values.dtype.element_ty), mask=inside)


@triton.jit
def sign_kernel(inputs, signs, positive, near, count, columns, BYTES: tl.constexpr):
    """Write the sign of each input, and eight bits of each of ``x ≥ 0`` and ``|x| < 1`` into a byte."""
    byte, place, inside = _places(count, columns, BYTES)
    value = _wide(tl.load(inputs + place, mask=inside, other=0))
    above = (value >= 0) & inside
    small = (value > -1) & (value < 1) & inside
    tl.store(signs + place, tl.where(above, 1.0, -1.0).to(signs.dtype.element_ty), mask=inside)
    bit = tl.arange(0, 8)[None, :]
    tl.store(positive + byte, tl.sum(above.to(tl.int32) << bit, axis=1).to(tl.uint8), mask=byte < count)
    tl.store(near + byte, tl.sum(small.to(tl.int32) << bit, axis=1).to(tl.uint8), mask=byte < count)


@triton.jit
def mask_kernel(gradient, packed, masked, count, columns, BYTES: tl.constexpr):
    """Write each gradient times its bit."""
    byte, place, inside = _places(count, columns, BYTES)
    loaded = tl.load(packed + byte, mask=byte < count, other=0).to(tl.int32)
    bit = (loaded[:, None] >> tl.arange(0, 8)[None, :]) & 1
    value = _wide(tl.load(gradient + place, mask=inside, other=0))
    tl.store(masked + place, (value * bit).to(masked.dtype.element_ty), mask=inside)
