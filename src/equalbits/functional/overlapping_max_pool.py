"""A max pool of overlapping windows for compiled steps: one byte per output for the backward pass, and no float32.

Compiled, torch adds up the gradients of overlapping windows in a float32 tensor of the input's size, next to others.
These operators call torch's own kernels, on a few images at a time, since their indices have 8 bytes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equalbits.functional.packed_bits import in_format, operator

_IMAGES = 32  # at a time


def overlapping_max_pool(inputs: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """Return ``torch.nn.functional.max_pool2d`` of square windows of at most 16×16.

    >>> overlapping_max_pool(torch.arange(16.0).view(1, 1, 4, 4), 3, 2, 1)
    tensor([[[[ 5.,  7.],
              [13., 15.]]]])
    """
    if size > 16:
        raise ValueError(f"size={size}: a place in a window must fit into a byte, so that windows have at most 16×16")
    outputs, _ = _pool_op(inputs, size, stride, padding)
    return outputs  # type: ignore[no-any-return]


def _pool(inputs: Tensor, size: int, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """Return the maxima and the place of each in its window."""
    pooled = torch.ops.aten.max_pool2d_with_indices
    width, found = inputs.shape[3], []
    for images in _parts(inputs):
        outputs, indices = pooled(images, [size, size], [stride, stride], [padding, padding])
        top, left = _corners(indices, stride, padding)
        places = (indices // width - top) * size + indices % width - left
        found.append((outputs, places.to(torch.uint8)))
    layout = inputs.is_contiguous(memory_format=torch.channels_last)
    first, second = (torch.cat(parts) for parts in zip(*found, strict=True))
    return in_format(first, layout), in_format(second, layout)


def _pool_gradient(
    gradient: Tensor, places: Tensor, shape: Sequence[int], size: int, stride: int, padding: int
) -> Tensor:
    strided = places.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if strided else torch.contiguous_format
    found = gradient.new_empty(shape).contiguous(memory_format=layout)
    gradient = gradient.contiguous(memory_format=layout)
    for images, part, place in zip(*map(_parts, (found, gradient, places)), strict=True):
        top, left = _corners(place, stride, padding)
        wide = place.to(torch.int64)
        indices = (wide // size + top) * shape[3] + wide % size + left
        form = [size, size], [stride, stride], [padding, padding], [1, 1], False
        images.copy_(torch.ops.aten.max_pool2d_with_indices_backward(part, images, *form, indices))
    return found


def _parts(images: Tensor) -> Sequence[Tensor]:
    return torch.split(images, _IMAGES)


def _corners(places: Tensor, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """Return the row and the column where each window begins."""
    rows, columns = (torch.arange(count, device=places.device) * stride - padding for count in places.shape[2:])
    return rows[:, None], columns


_pool_op = operator("max_pool", "(Tensor inputs, int size, int stride, int padding) -> (Tensor, Tensor)", _pool)
_gradient_op = operator(
    "max_pool_backward",
    "(Tensor gradient, Tensor places, SymInt[] shape, int size, int stride, int padding) -> Tensor",
    _pool_gradient,
)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])
    ctx.form = inputs[0].shape, *inputs[1:]


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return _gradient_op(gradient, *ctx.saved_tensors, *ctx.form), None, None, None


_pool_op.register_autograd(_backward, setup_context=_setup_context)
