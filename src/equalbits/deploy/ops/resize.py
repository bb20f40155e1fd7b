"""Rules for images and rows of another size: the nearest entry by its place, all else as a matrix for each axis."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equalbits.deploy import simplify
from equalbits.deploy.graph import Value
from equalbits.deploy.ops.gather import take
from equalbits.deploy.tracer import Rule, Walk

aten = torch.ops.aten


def nearest(operator: Any) -> Rule:
    """The nearest entry along each axis."""

    def rule(walk: Walk, value: Any, size: Any, scales: Sequence[float] | None) -> Value:
        made = walk.value(value)
        for axis, long, scale in _axes(walk, made, scales):
            column = torch.arange(float(made.shape[axis - 1]))[None, None, :, None]
            made = take(walk, made, axis, operator(column, [long, 1], scale, None).flatten().int().tolist())
        return made

    return rule


def mixed(operator: Any) -> Rule:
    """Means of entries along each axis, weighed as torch weighs them."""

    def rule(walk: Walk, value: Any, size: Any, align: bool, scales: Sequence[float] | None) -> Value:
        made = walk.value(value)
        for axis, long, scale in _axes(walk, made, scales):
            entries = torch.eye(made.shape[axis - 1])
            columns = entries[None, :, :, None].repeat(1, 1, 1, 2)  # of one alone torch mistakes the order of axes
            matrix = operator(columns, [long, 2], align, scale, None)[0, :, :, 0].T
            made = made if torch.equal(matrix, entries) else _multiply(walk, made, axis, matrix)
        return made

    return rule


def _axes(walk: Walk, value: Value, scales: Sequence[float] | None) -> list[tuple[int, int, float | None]]:
    """The axes behind the channels, the batch being axis 0: how long each becomes, and by what scale."""
    assert walk.shape is not None
    axes = range(2, len(value.shape) + 1)
    return [(axis, walk.shape[axis], None if scales is None else scales[axis - 2]) for axis in axes]


def _multiply(walk: Walk, value: Value, axis: int, matrix: Tensor) -> Value:
    """A matrix times each column along an axis: a convolution that sees one pixel, the axis as its channels."""
    steps, layer = walk.steps, walk.layer
    rank = len(value.shape)
    first = simplify.to_front(steps, value, axis - 1, layer=layer)
    image = first if rank == 3 else simplify.reshape(steps, first, (*first.shape, 1), layer=layer)
    weight = matrix.contiguous()[:, :, None, None].numpy()
    made = steps.add("conv", image, layer=layer, arrays={"weight": weight}, kernel=1)
    made = simplify.reshape(steps, made, made.shape[:rank], layer=layer)
    return simplify.from_front(steps, made, axis - 1, layer=layer)


RULES: dict[str, Rule] = {}
for _name in ("upsample_nearest", "_upsample_nearest_exact"):
    RULES |= dict.fromkeys(
        (f"{_name}{axes}.vec" for axes in ("1d", "2d")), nearest(getattr(aten, f"{_name}2d").default)
    )
for _name in ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
    RULES[f"{_name}.vec"] = mixed(getattr(aten, _name).default)
RULES["upsample_linear1d.vec"] = RULES["upsample_bilinear2d.vec"]
