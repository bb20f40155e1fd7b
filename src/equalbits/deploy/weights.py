"""Weights as bits: a layer's weights as one plane of symbols times a scale, or as a sum of a few such planes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equalbits.deploy.graph import Arrays, PackError, Step, Steps
from equalbits.functional import Plane, bases_to_bit_planes, to_bit_planes
from equalbits.nn import ABCNet, BinaryLayer, abcnet_bases
from equalbits.runtime import bits

#: How the numbers that are no bits may be stored.
RESTS = ("float32", "float16", "int8")

#: How the inputs of binary linear layers may be taken, where they are not signs.
LINEAR_INPUTS = ("float32", "int8")

#: What hands numbers on as they are.
_MOVES = ("flatten", "reshape", "permute", "slice", "channel_shuffle")

#: The smallest half with all its digits.
_LEAST_HALF = float(np.finfo(np.float16).smallest_normal)


@dataclass(frozen=True)
class BinaryWeights:
    """A layer's weights, ``Σ scale · symbols`` over its planes, and the share of +1 that the first plane promises."""

    name: str
    planes: tuple[Plane, ...]
    p_pos: float | None


def plane_arrays(plane: Plane) -> Arrays:
    """A plane's parts as a packed layer has them."""
    sign, kept = bits.pack_symbols(plane.symbols)
    arrays: Arrays = {"weight": sign, "scale": plane.scale}
    return arrays if kept is None else {**arrays, "kept": kept}


@torch.no_grad()
def binary_weights(layer: BinaryLayer, name: str) -> BinaryWeights:
    """What ``layer`` multiplies with, as planes: found by holding its weights against its symbols.

    ABC-Net's bases are a plane each, the others as :func:`~equalbits.functional.to_bit_planes` finds them.
    Anything else is refused.
    """
    values = layer.to_filters(layer.binary_weight())
    if not bool(values.isfinite().all()):
        raise PackError(f"layer {name!r} has weights that are not finite: it was trained to nothing; train it again")
    planes = to_bit_planes(values, layer.symbols())
    if planes is not None:
        return BinaryWeights(name, planes, getattr(layer.weight_quantizer, "p_pos", None))
    if isinstance(layer.weight_quantizer, ABCNet):
        bases = abcnet_bases(layer.to_filters(layer.weight), layer.weight_quantizer.bases)
        return BinaryWeights(name, bases_to_bit_planes(*bases, layer.scale), None)
    method = type(layer.weight_quantizer).__name__
    raise PackError(
        f"layer {name!r} ({method}) multiplies by numbers that are not a scale times its symbols: such weights are not "
        f"bits; leave the layer real, or give {method} a scale for each filter"
    )


def store(step: Step, rest: str) -> Arrays:
    """A step's arrays as they go into the file; bits and scales stay as they are.

    ``"int8"`` stores real weights as whole numbers with a scale for each filter, symmetric around 0, and all else as
    ``"float16"`` does.
    """
    return step.arrays if rest == "float32" else dict(_narrow(step, rest))


def _narrow(step: Step, rest: str) -> Iterator[tuple[str, NDArray[Any]]]:
    for part, array in step.arrays.items():
        if part == "scale" or array.dtype != np.float32:
            yield part, array
        elif part == "weight" and rest == "int8":
            yield from whole_numbers(array).items()
        else:
            with np.errstate(over="ignore"):
                narrow = array.astype(np.float16)
            if not np.isfinite(narrow).all():
                largest = float(np.abs(array).max())
                raise PackError(
                    f"layer {step.layer!r} has a {part} of {largest:g}, above float16's 65504: pack with rest='float32'"
                )
            yield part, narrow


def round_inputs(steps: Steps) -> None:
    """Have every binary linear layer round its input to 8 bits, unless that is signs, which are exact as they are."""
    found = [step for step in steps.rows if step.kind == "linear" and step.arrays["weight"].dtype == np.uint8]
    found = [step for step in found if not _reads_signs(steps, step)]
    if not found:
        raise PackError(
            "linear_inputs='int8' rounds what binary linear layers read where it is not signs, and the model has no "
            "such layer: leave it at 'float32'"
        )
    for step in found:
        step.settings = {**step.settings, "input_bits": 8}


def _reads_signs(steps: Steps, step: Step) -> bool:
    number = step.inputs[0]
    while number and steps.rows[number - 1].kind in _MOVES:
        number = steps.rows[number - 1].inputs[0]
    return number > 0 and steps.rows[number - 1].kind == "sign"


def whole_numbers(weight: NDArray[np.float32]) -> Arrays:
    """A weight as int8 and its scales: the nearest of 255 values, the largest of each filter being ±127.

    The scales are rounded to halves first, where they are large enough for that, and the weights by what they are then.

    >>> whole_numbers(np.array([[0.5, -1.0]], np.float32))["weight"]
    array([[  64, -127]], dtype=int8)
    """
    rows = weight.reshape(len(weight), -1)
    scale = np.abs(rows).max(axis=1) / np.float32(127)
    scale[scale == 0] = 1
    if scale.min() >= _LEAST_HALF and scale.max() <= np.finfo(np.float16).max:
        scale = scale.astype(np.float16)
    whole = np.rint(rows / scale[:, None].astype(np.float32)).clip(-127, 127)
    return {"weight": whole.astype(np.int8).reshape(weight.shape), "scale": scale}
