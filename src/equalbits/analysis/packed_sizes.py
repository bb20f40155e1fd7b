"""Size of each layer: 1-bit symbols, real numbers, and the bytes of both in a packed file."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from equalbits.functional import Plane, as_filters, bases_to_bit_planes, filter_entropy, to_bit_planes
from equalbits.nn import HWGQ, HWGQ_LEVELS, ABCNet, AdaBinActivation, BinaryLayer, RSign, abcnet_bases

#: Tensors already counted, by role and identity. Holding them keeps the ids of computed tensors from being reused.
Seen = dict[tuple[str, int], Tensor]


@dataclass(kw_only=True)
class LayerSummary:
    """Size and cost of one layer.

    ``bits`` per weight and ``entropy`` (mean over filters) are None without binary weights. MACs (multiply-accumulates)
    are per example.
    """

    symbols: int = 0
    bits: int | None = None
    real: int
    packed_bytes: int
    float32_bytes: int
    entropy: float | None = None
    name: str
    kind: str
    output: tuple[int, ...] | None = None
    calls: int = 0
    binary_macs: int = 0
    mixed_macs: int = 0
    real_macs: int = 0
    constant_input: bool = False
    weight_read: bool = False


def layers_with_weights(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules with parameters or buffers of their own; the parts of a binary layer belong to that layer."""
    inside = {part for layer in model.modules() if isinstance(layer, BinaryLayer) for part in layer.modules()}
    for name, module in model.named_modules():
        if isinstance(module, BinaryLayer) or (module not in inside and any(True for _ in _saved_tensors(module))):
            yield name, module


@torch.no_grad()
def layer_size(name: str, layer: nn.Module, seen: Seen) -> LayerSummary:
    """Return the size of a layer without the tensors in ``seen``, and add its own: shared tensors count once.

    A packed file takes ⌈D/8⌉ bytes for the ``D`` symbols of a filter. It takes twice that if some are 0 (sign bits and
    mask bits) or if −1 and +1 differ in magnitude (two bit planes), and once for each base of ABC-Net. It takes 4 bytes
    for each real number: the scales of a plane (one, or one per filter), the bias, and the numbers of the input
    quantizer. A batch norm is packed as a gain and a shift per channel (see :func:`folds_batch_norm`). State that only
    training needs (latents, scores, training progress) takes none.
    """
    kind = type(layer).__name__
    if not isinstance(layer, BinaryLayer):
        real = _count_new(_saved_tensors(layer), seen)
        packed = min(real, 2 * layer.num_features) if isinstance(layer, _BatchNorm) else real
        packed = 2 * real if isinstance(layer, RSign) else packed
        return LayerSummary(name=name, kind=kind, real=real, packed_bytes=4 * packed, float32_bytes=4 * real)
    others = [tensor for tensor in _saved_tensors(layer) if tensor is not layer.weight and tensor is not layer.scale]
    real, inputs, packed_inputs = _count_new(others, seen), 0, 0
    if layer.input_quantizer is not None:
        parts = layer.input_quantizer.modules()
        inputs = _count_new([tensor for part in parts for tensor in _saved_tensors(part)], seen)
        packed_inputs = _packed_numbers(layer.input_quantizer, layer, inputs)
    symbols = as_filters(layer.symbols())
    planes = _planes(layer, symbols)
    scales = sum(plane.scale.size for plane in planes)
    bits = sum(1 + bool((plane.symbols == 0).any()) for plane in planes)
    new = _count_new([layer.weight], seen, "latent")
    packed = bits * len(symbols) * -(-symbols.shape[1] // 8) if new else 0
    packed += 4 * (real + scales + packed_inputs)
    mean = float(filter_entropy(symbols).nanmean())
    return LayerSummary(
        name=name,
        kind=kind,
        symbols=new,
        bits=bits,
        real=real + scales + inputs,
        packed_bytes=packed,
        float32_bytes=4 * (new + real),  # the same layer in float32 has neither scales nor an input quantizer
        entropy=None if math.isnan(mean) else mean,
    )


def folds_batch_norm(layer: nn.Module, norm: nn.Module) -> bool:
    """Return True if packing folds the batch norm ``norm`` into the layer before it, which must have real weights."""
    real = isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear) and not isinstance(layer, BinaryLayer)
    return real and isinstance(norm, _BatchNorm)


def _planes(layer: BinaryLayer, symbols: Tensor) -> tuple[Plane, ...]:
    """Return the bit planes that a packed file stores; weights that are not bits count as two planes."""
    planes = to_bit_planes(layer.to_filters(layer.binary_weight()), symbols)
    if planes is not None:
        return planes
    if isinstance(layer.weight_quantizer, ABCNet):
        return bases_to_bit_planes(
            *abcnet_bases(layer.to_filters(layer.weight), layer.weight_quantizer.bases), layer.scale
        )
    signs = symbols.sign().cpu().numpy().astype(np.int8)
    return (Plane(np.where(signs == 0, np.int8(1), signs), np.zeros(len(signs), np.float32)),) * 2


def _saved_tensors(module: nn.Module) -> Iterator[Tensor]:
    """Yield the module's own parameters and saved floating-point buffers, without the training progress."""
    yield from (parameter for parameter in module._parameters.values() if parameter is not None)
    for name, buffer in module._buffers.items():
        if name == "progress" or name in module._non_persistent_buffers_set:
            continue
        if buffer is not None and buffer.is_floating_point():
            yield buffer


def _count_new(tensors: Iterator[Tensor] | list[Tensor], seen: Seen, role: str = "real") -> int:
    new = {(role, id(tensor)): tensor for tensor in tensors if (role, id(tensor)) not in seen}
    seen.update(new)
    return sum(tensor.numel() for tensor in new.values())


def _packed_numbers(quantizer: nn.Module, layer: BinaryLayer, held: int) -> int:
    """Return how many numbers a packed file stores for an input quantizer that itself has ``held`` numbers.

    A file expresses a quantizer by signs and by ``gain · x + shift`` with one gain and one shift per channel; equal
    pairs of a layer are stored once. A plain sign takes no number. ReActNet's shift comes with a gain of 1. Quantizers
    not named here are stored as they are.
    """
    channels, _ = layer.input_channels() or (0, None)
    if isinstance(quantizer, RSign):
        return 2 * held
    if isinstance(quantizer, AdaBinActivation):  # a · sign((x − b)/a) + b: x − b, x / a, a · s, s + b
        distance, centre = float(quantizer.distance), float(quantizer.centre)
        pairs = [(1.0, -centre), (1 / np.float64(distance), 0.0), (distance, 0.0), (1.0, centre)]
    elif isinstance(quantizer, HWGQ):
        pairs = _step_affines((0.0, *HWGQ_LEVELS[quantizer.bits]))
    else:
        return held
    return 2 * channels * len({(np.float32(gain), np.float32(shift)) for gain, shift in pairs})


def _step_affines(levels: tuple[float, ...]) -> list[tuple[float, float]]:
    """Return the (gain, shift) pairs of a step function: one moves each threshold to 0, one sets each step's height."""
    halves = [(above - below) / 2 for below, above in pairwise(levels)]
    thresholds = [0.0, *((below + above) / 2 for below, above in pairwise(levels[1:]))]
    offsets = [levels[0] + sum(halves), *[0.0] * (len(halves) - 1)]
    heights = ((-half, offset) for half, offset in zip(halves, offsets, strict=True))
    return [*((-1.0, threshold) for threshold in thresholds), *heights]
