"""Binary weights as planes of bits, each with a scale; and the dtypes of all other tensors."""

from dataclasses import dataclass

import numpy as np
import torch

from equalbits.deploy.graph import Arrays, Graph, PackError, Step
from equalbits.functional import Plane, bases_to_bit_planes, to_bit_planes
from equalbits.nn import ABCNet, BinaryLayer, abcnet_bases
from equalbits.runtime import Floats, bits

#: Dtypes of the non-binary tensors.
RESTS = ("float32", "float16", "int8")
#: Dtypes of the inputs of binary linear layers that are not signs.
LINEAR_INPUTS = ("float32", "int8")


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
    """Return the arrays of a step with non-binary tensors as float16, and real weights as int8 where ``rest`` is.

    Scales stay as they are.
    """
    arrays: Arrays = {}
    for part, array in step.arrays.items():
        if part == "scale" or array.dtype != np.float32:
            arrays[part] = array
        elif part == "weight" and rest == "int8":
            arrays |= quantize_int8(array)
        else:
            with np.errstate(over="ignore"):
                arrays[part] = array.astype(np.float16)
            if not np.isfinite(arrays[part]).all():
                largest = float(np.abs(array).max())
                raise PackError(
                    f"layer {step.layer!r} has a {part} of {largest:g}, above float16's 65504: pack with rest='float32'"
                )
    return arrays


def round_linear_inputs(graph: Graph) -> None:
    """Set ``input_bits=8`` on every binary linear layer whose input is not signs; signs are exact anyway."""
    linear = [step for step in graph.steps if step.kind == "linear" and step.arrays["weight"].dtype == np.uint8]
    found = [step for step in linear if not graph.is_moved_sign(step.inputs[0])]
    if not found:
        raise PackError(
            "linear_inputs='int8' rounds the inputs of binary linear layers that are not signs, and the model has no "
            "such layer: leave it at 'float32'"
        )
    for step in found:
        step.settings = {**step.settings, "input_bits": 8}


def quantize_int8(weight: Floats) -> Arrays:
    """Quantize a weight to int8 with a scale per filter, whose largest weight becomes ±127.

    Scales are rounded to float16 first where its range allows.

    >>> quantize_int8(np.array([[0.5, -1.0]], np.float32))["weight"]
    array([[  64, -127]], dtype=int8)
    """
    rows = weight.reshape(len(weight), -1)
    scale = np.abs(rows).max(axis=1) / np.float32(127)
    scale[scale == 0] = 1
    half = np.finfo(np.float16)
    if scale.min() >= half.smallest_normal and scale.max() <= half.max:
        scale = scale.astype(np.float16)
    rounded = np.rint(rows / scale[:, None].astype(np.float32)).clip(-127, 127)
    return {"weight": rounded.astype(np.int8).reshape(weight.shape), "scale": scale}
