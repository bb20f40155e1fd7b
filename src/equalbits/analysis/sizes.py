"""What each layer of a model holds: 1-bit symbols, real numbers, and the bytes of both in a packed file."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from equalbits.analysis.packed_inputs import packed_numbers
from equalbits.functional import abcnet_bases, as_filters, filter_entropy
from equalbits.functional.bit_planes import Plane, planes_of, planes_of_bases
from equalbits.nn import ABCNet, BinaryLayer, RSign

#: What was counted, by its role and identity; held, since one that is computed when asked for is gone otherwise.
Seen = dict[tuple[str, int], Tensor]


@dataclass(frozen=True)
class Size:
    """What one layer holds. ``bits`` and ``entropy`` (the mean over filters) are None where there are no symbols."""

    symbols: int
    bits: int | None
    real: int
    packed_bytes: int
    float32_bytes: int
    entropy: float | None


def layers_with_weights(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that hold parameters or buffers themselves; what a binary layer is made of counts as that layer."""
    inside = {part for layer in model.modules() if isinstance(layer, BinaryLayer) for part in layer.modules()}
    for name, module in model.named_modules():
        if isinstance(module, BinaryLayer) or (module not in inside and any(True for _ in _held(module))):
            yield name, module


@torch.no_grad()
def size_of(layer: nn.Module, seen: Seen) -> Size:
    """What ``layer`` holds that is not in ``seen``, which is added to: a tensor that several layers share counts once.

    A packed file takes ⌈D/8⌉ bytes for the ``D`` symbols of a filter, twice that where some are 0 (a plane of signs
    and a plane of what is kept) or where −1 and +1 weigh differently (a plane of ones for what lies between them), once
    for each base of ABC-Net; and 4 for each real number: the scales of a plane (one, or one for each filter), bias, and
    what quantizes the input (:func:`~equalbits.analysis.packed_inputs.packed_numbers`). A batch norm is packed as a
    gain and a shift for each channel (see :func:`takes_in`). What only training needs (latents, scores, how far
    training is) takes none.
    """
    if not isinstance(layer, BinaryLayer):
        real = _count_new(_held(layer), seen)
        packed = min(real, 2 * layer.num_features) if isinstance(layer, _BatchNorm) else real
        packed = 2 * real if isinstance(layer, RSign) else packed
        return Size(0, None, real, 4 * packed, 4 * real, None)
    beside = [tensor for tensor in _held(layer) if tensor is not layer.weight and tensor is not layer.scale]
    real, inputs, stored_inputs = _count_new(beside, seen), 0, 0
    if layer.input_quantizer is not None:
        inputs = _count_new([tensor for part in layer.input_quantizer.modules() for tensor in _held(part)], seen)
        stored_inputs = packed_numbers(layer.input_quantizer, layer, inputs)
    symbols = as_filters(layer.symbols())
    planes = _planes(layer, symbols)
    scales = sum(plane.scale.size for plane in planes)
    bits = sum(1 + bool((plane.symbols == 0).any()) for plane in planes)
    new = _count_new([layer.weight], seen, "latent")
    packed = bits * len(symbols) * -(-symbols.shape[1] // 8) if new else 0
    packed += 4 * (real + scales + stored_inputs)
    # The same layer in float32 would have neither scales nor what quantizes its input.
    entropy = float(filter_entropy(symbols).nanmean())
    known = None if math.isnan(entropy) else entropy
    return Size(new, bits, real + scales + inputs, packed, 4 * (new + real), known)


def takes_in(layer: nn.Module, norm: nn.Module) -> bool:
    """Whether packing lets ``layer`` take in a batch norm that stands right behind it: its weights must be real."""
    real = isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear) and not isinstance(layer, BinaryLayer)
    return real and isinstance(norm, _BatchNorm)


def taken_in(norm: Size, layer: nn.Module) -> Size:
    """The size of a batch norm that ``layer`` takes in: a bias for each channel, where there is none yet."""
    return replace(norm, packed_bytes=norm.packed_bytes // 2 if layer.bias is None else 0)


def _planes(layer: BinaryLayer, symbols: Tensor) -> tuple[Plane, ...]:
    """The planes that a packed file stores of a layer; weights that are no bits count as if −1 and +1 were two."""
    planes = planes_of(layer.to_filters(layer.binary_weight()), symbols)
    if planes is not None:
        return planes
    if isinstance(layer.weight_quantizer, ABCNet):
        return planes_of_bases(abcnet_bases(layer.to_filters(layer.weight), layer.weight_quantizer.bases), layer.scale)
    signs = symbols.sign().cpu().numpy().astype(np.int8)
    return (Plane(np.where(signs == 0, np.int8(1), signs), np.zeros(len(signs), np.float32)),) * 2


def _held(module: nn.Module) -> Iterator[Tensor]:
    """The parameters of a module itself, and its floating buffers that are saved, but how far training is."""
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
