"""Weights as bits: a layer's weights as one plane of symbols times a scale, or as a sum of a few such planes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equalbits.deploy.steps import Arrays, PackError, Step, Steps
from equalbits.functional.scaled import abcnet_bases
from equalbits.nn import ABCNet, BinaryLayer
from equalbits.runtime import bits

#: How the numbers that are no bits may be stored.
RESTS = ("float32", "float16", "int8")

#: How the inputs of binary linear layers may be taken, where they are not signs.
LINEAR_INPUTS = ("float32", "int8")

#: What hands numbers on as they are.
_MOVES = ("flatten", "reshape", "permute", "slice", "channel_shuffle")

#: The smallest half with all its digits.
_LEAST_HALF = float(np.finfo(np.float16).smallest_normal)

Rows = NDArray[np.float64]


@dataclass(frozen=True)
class Plane:
    """Symbols −1, 0 and +1 of shape (filter, connection), and what they are multiplied by: one number, or one each."""

    symbols: NDArray[np.int8]
    scale: NDArray[np.float32]

    def arrays(self) -> Arrays:
        """The parts as a packed layer has them."""
        sign, kept = bits.pack_symbols(self.symbols)
        arrays: Arrays = {"weight": sign, "scale": self.scale}
        return arrays if kept is None else {**arrays, "kept": kept}


@dataclass(frozen=True)
class BinaryWeights:
    """A layer's weights, ``Σ scale · symbols`` over its planes, and the share of +1 that the first plane promises."""

    name: str
    planes: tuple[Plane, ...]
    p_pos: float | None


@torch.no_grad()
def binary_weights(layer: BinaryLayer, name: str) -> BinaryWeights:
    """What ``layer`` multiplies with, as planes: found by holding its weights against its symbols.

    Most methods scale each filter's symbols by one number, which is exact. AdaBin's ``a · symbol + b`` is two planes,
    the second all +1; ABC-Net's bases are a plane each. Anything else is refused.
    """
    values, symbols = (_rows(t) for t in (layer.to_filters(layer.binary_weight()), layer.symbols()))
    if not np.isfinite(values).all():
        raise PackError(f"layer {name!r} has weights that are not finite: it was trained to nothing; train it again")
    p_pos = getattr(layer.weight_quantizer, "p_pos", None)
    for form in (_one_scale, _two_values):
        planes = form(values, symbols)
        if planes is not None:
            return BinaryWeights(name, planes, p_pos)
    if isinstance(layer.weight_quantizer, ABCNet):
        return BinaryWeights(name, _bases(layer, layer.weight_quantizer), None)
    method = type(layer.weight_quantizer).__name__
    raise PackError(
        f"layer {name!r} ({method}) multiplies by numbers that are not a scale times its symbols: such weights are not "
        f"bits; leave the layer real, or give {method} a scale for each filter"
    )


def _one_scale(values: Rows, symbols: Rows) -> tuple[Plane, ...] | None:
    """``values = scale · symbols``, filter by filter, to the last bit."""
    kept = symbols != 0
    if values[~kept].any():
        return None
    signed = values * symbols
    largest, smallest = (
        reduce(np.where(kept, signed, fill), axis=1) for reduce, fill in ((np.max, -np.inf), (np.min, np.inf))
    )
    filled = kept.any(axis=1)
    if (largest != smallest)[filled].any():
        return None
    return (Plane(symbols.astype(np.int8), _shortest(largest, filled)),)


def _shortest(scale: Rows, filled: NDArray[np.bool_]) -> NDArray[np.float32]:
    """One number where all filters that have a connection agree, else one for each; a filter without any has 0."""
    found = np.unique(scale[filled])
    if len(found) <= 1:
        return (found if len(found) else np.zeros(1)).astype(np.float32)
    return np.where(filled, scale, 0).astype(np.float32)


def _two_values(values: Rows, symbols: Rows) -> tuple[Plane, ...] | None:
    """``values = a · symbols + b``, filter by filter: a second plane of +1 carries ``b``."""
    if not symbols.all():
        return None
    above, below = (_constant(values, symbols == symbol) for symbol in (1, -1))
    if above is None or below is None:
        return None
    above, below = np.where(np.isnan(above), -below, above), np.where(np.isnan(below), -above, below)
    slope, centre = (above - below) / 2, (above + below) / 2
    planes = (symbols, slope), (np.ones_like(symbols), centre)
    return tuple(Plane(rows.astype(np.int8), scale.astype(np.float32)) for rows, scale in planes)


def _constant(values: Rows, where: NDArray[np.bool_]) -> Rows | None:
    """Each row's value at ``where``, NaN where there is none; None when a row has several."""
    high, low = np.where(where, values, -np.inf).max(axis=1), np.where(where, values, np.inf).min(axis=1)
    some = where.any(axis=1)
    return None if (high != low)[some].any() else np.where(some, high, np.nan)


def _bases(layer: BinaryLayer, quantizer: ABCNet) -> tuple[Plane, ...]:
    found = abcnet_bases(layer.to_filters(layer.weight), quantizer.bases)
    scales = (found.weights * layer.scale).double().cpu().numpy()
    symbols = found.symbols.cpu().numpy().astype(np.int8)
    return tuple(Plane(symbols[:, :, i], scales[:, i].astype(np.float32)) for i in range(quantizer.bases))


def _rows(tensor: torch.Tensor) -> Rows:
    rows: Rows = tensor.detach().cpu().contiguous().flatten(1).double().numpy()
    return rows


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
