"""Resizing of images and rows: nearest by gathering, every other mode as a matrix per axis."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from equalbits.deploy.ops.gather import take
from equalbits.deploy.traced_values import Value
from equalbits.deploy.tracer import Tracer, rule

_NEAREST = ("upsample_nearest", "_upsample_nearest_exact")
_LINEAR = ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")

Scales = Sequence[float] | None


def _nearest(operator: Callable[..., Tensor]) -> Callable[..., Value]:
    """Make the rule of a nearest mode: torch resizes the indices of each axis."""

    def resize(tracer: Tracer, value: Value, size: Sequence[int] | None, scales: Scales) -> Value:
        for axis, length, scale in _resized_axes(tracer, value, scales):
            column = torch.arange(float(value.shape[axis - 1]))[None, None, :, None]
            value = take(tracer, value, axis, operator(column, [length, 1], scale, None).flatten().int().tolist())
        return value

    return resize


def _linear(operator: Callable[..., Tensor]) -> Callable[..., Value]:
    """Make the rule of a linear mode: torch resizes an identity matrix to get the weights of each axis."""

    def resize(tracer: Tracer, value: Value, size: Sequence[int] | None, align_corners: bool, scales: Scales) -> Value:
        for axis, length, scale in _resized_axes(tracer, value, scales):
            identity = torch.eye(value.shape[axis - 1])
            columns = identity[None, :, :, None].repeat(1, 1, 1, 2)  # with a single column torch swaps the axes
            matrix = operator(columns, [length, 2], align_corners, scale, None)[0, :, :, 0].T
            value = value if torch.equal(matrix, identity) else _multiply(tracer, value, axis, matrix)
        return value

    return resize


def _resized_axes(tracer: Tracer, value: Value, scales: Scales) -> list[tuple[int, int, float | None]]:
    """Return axis, new length and scale of every axis behind the channels; the batch is axis 0."""
    shape = (tracer.batch, *tracer.output_shape())
    axes = range(2, len(value.shape) + 1)
    return [(axis, shape[axis], None if scales is None else scales[axis - 2]) for axis in axes]


def _multiply(tracer: Tracer, value: Value, axis: int, matrix: Tensor) -> Value:
    """Multiply each column along an axis by a matrix: a 1×1 convolution with that axis as channels."""
    rank = len(value.shape)
    first = tracer.move_axis(value, axis - 1, 0)
    image = first if rank == 3 else tracer.reshape(first, (*first.shape, 1))
    weight = matrix.contiguous()[:, :, None, None].numpy()
    made = tracer.add("conv", image, arrays={"weight": weight}, kernel=1)
    return tracer.move_axis(tracer.reshape(made, made.shape[:rank]), 0, axis - 1)


for _name in _NEAREST:
    _operator = getattr(torch.ops.aten, f"{_name}2d").default
    rule(f"{_name}1d.vec", f"{_name}2d.vec")(_nearest(_operator))
for _name in _LINEAR:
    rule(f"{_name}.vec")(_linear(getattr(torch.ops.aten, _name).default))
rule("upsample_linear1d.vec")(_linear(torch.ops.aten.upsample_bilinear2d.default))
