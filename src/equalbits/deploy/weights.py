"""Binary weights as planes of bits, each with a scale; and the dtypes of all other tensors."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from equalbits.deploy.graph import Arrays, Graph, PackError, Step
from equalbits.functional import Plane, bases_to_bit_planes, to_bit_planes
from equalbits.nn import ABCNet, BinaryLayer, abcnet_bases
from equalbits.runtime import bits
from equalbits.runtime.op_specs import Array, Floats
from equalbits.runtime.ops import OPS

#: Dtypes of the non-binary tensors.
RESTS = ("float32", "float16", "int8")
#: Dtypes of the inputs of binary linear layers that are not signs.
LINEAR_INPUTS = ("float32", "int8")

#: Smallest float16 with full precision.
_SMALLEST_HALF = float(np.finfo(np.float16).smallest_normal)


@dataclass(frozen=True)
class BinaryWeights:
    """Weights of a layer, ``Σ scale · symbols`` over its planes, and the share of +1 that the first plane promises."""

    name: str
    planes: tuple[Plane, ...]
    p_pos: float | None


def plane_arrays(plane: Plane) -> Arrays:
    """Return the arrays of a packed layer with the weights of one plane."""
    sign, kept = bits.pack_symbols(plane.symbols)
    arrays: Arrays = {"weight": sign, "scale": plane.scale}
    return arrays if kept is None else {**arrays, "kept": kept}


@torch.no_grad()
def binary_weights(layer: BinaryLayer, name: str) -> BinaryWeights:
    """Decompose the weights of a layer into planes by comparing them with its symbols.

    ABC-Net has one plane per base. Weights that are no sum of planes are refused.
    """
    values = layer.to_filters(layer.binary_weight())
    if not bool(values.isfinite().all()):
        raise PackError(f"layer {name!r} has weights that are not finite: training diverged")
    planes = to_bit_planes(values, layer.symbols())
    if planes is not None:
        return BinaryWeights(name, planes, getattr(layer.weight_quantizer, "p_pos", None))
    if isinstance(layer.weight_quantizer, ABCNet):
        bases = abcnet_bases(layer.to_filters(layer.weight), layer.weight_quantizer.bases)
        return BinaryWeights(name, bases_to_bit_planes(*bases, layer.scale), None)
    method = type(layer.weight_quantizer).__name__
    raise PackError(
        f"layer {name!r} ({method}) multiplies by numbers that are not a scale times its symbols, so they are not "
        f"bits: leave the layer real, or give {method} a scale per filter"
    )


def narrow_arrays(step: Step, rest: str) -> Arrays:
    """Return the arrays of a step with non-binary tensors as ``rest``; scales stay as they are.

    ``"int8"`` quantizes real weights symmetrically with a scale per filter, and stores everything else as float16.
    """
    return step.arrays if rest == "float32" else dict(_narrow(step, rest))


def _narrow(step: Step, rest: str) -> Iterator[tuple[str, Array]]:
    for part, array in step.arrays.items():
        if part == "scale" or array.dtype != np.float32:
            yield part, array
        elif part == "weight" and rest == "int8":
            yield from quantize_int8(array).items()
        else:
            with np.errstate(over="ignore"):
                narrow = array.astype(np.float16)
            if not np.isfinite(narrow).all():
                largest = float(np.abs(array).max())
                raise PackError(
                    f"layer {step.layer!r} has a {part} of {largest:g}, above float16's 65504: pack with rest='float32'"
                )
            yield part, narrow


def round_linear_inputs(graph: Graph) -> None:
    """Set ``input_bits=8`` on every binary linear layer whose input is not signs; signs are exact anyway."""
    found = [step for step in graph.steps if step.kind == "linear" and step.arrays["weight"].dtype == np.uint8]
    found = [step for step in found if not _reads_signs(graph, step)]
    if not found:
        raise PackError(
            "linear_inputs='int8' rounds the inputs of binary linear layers that are not signs, and the model has no "
            "such layer: leave it at 'float32'"
        )
    for step in found:
        step.settings = {**step.settings, "input_bits": 8}


def _reads_signs(graph: Graph, step: Step) -> bool:
    number = step.inputs[0]
    while number and _keeps_numbers(graph.steps[number - 1]):
        number = graph.steps[number - 1].inputs[0]
    return number > 0 and graph.steps[number - 1].kind == "sign"


def _keeps_numbers(step: Step) -> bool:
    """Return whether the output of a step holds only numbers of its one input."""
    return OPS[step.kind].moves and step.kind not in ("pad", "concat")


def quantize_int8(weight: Floats) -> Arrays:
    """Quantize a weight to int8 with a scale per filter, whose largest weight becomes ±127.

    Scales are rounded to float16 first where its range allows.

    >>> quantize_int8(np.array([[0.5, -1.0]], np.float32))["weight"]
    array([[  64, -127]], dtype=int8)
    """
    rows = weight.reshape(len(weight), -1)
    scale = np.abs(rows).max(axis=1) / np.float32(127)
    scale[scale == 0] = 1
    if scale.min() >= _SMALLEST_HALF and scale.max() <= np.finfo(np.float16).max:
        scale = scale.astype(np.float16)
    rounded = np.rint(rows / scale[:, None].astype(np.float32)).clip(-127, 127)
    return {"weight": rounded.astype(np.int8).reshape(weight.shape), "scale": scale}
