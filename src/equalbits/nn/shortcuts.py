"""``Shortcut``: a real path around a binary convolution and its batch norm, as in Bi-Real Net and ReActNet."""

import math
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.nn.modules.batchnorm import _BatchNorm

from equalbits.nn.forward_checks import Example, run_in_eval
from equalbits.nn.layers import BinaryConv2d
from equalbits.nn.replace_modules import replace_modules


class Shortcut(nn.Module):
    """``norm(layer(x)) + x``, without parameters of its own.

    Where the shapes differ, ``x`` is averaged over the layer's stride, and its channels are repeated, or averaged over
    groups.
    """

    index: Tensor

    def __init__(self, layer: BinaryConv2d, norm: nn.Module) -> None:
        super().__init__()
        self.layer, self.norm = layer, norm
        given, made = self.channels = layer.in_channels, layer.out_channels
        self.stride = layer.stride
        self.group = math.ceil(given / made)
        index = torch.arange(self.group * made, device=layer.weight.device) * given // (self.group * made)
        self.register_buffer("index", index, persistent=False)
        self.train(layer.training)

    def forward(self, images: Tensor) -> Tensor:
        """Return the normalized outputs of the layer plus its real inputs."""
        outputs: Tensor = self.norm(self.layer(images))
        given, made = self.channels
        if max(self.stride) > 1:
            images = nnf.avg_pool2d(images, self.stride, self.stride, ceil_mode=True, count_include_pad=False)
        if given != self.group * made:
            images = images[:, self.index]
        if self.group > 1:
            images = torch.unflatten(images, 1, (made, self.group)).mean(dim=2)
        return outputs + images


def add_shortcuts_(model: nn.Module, example: Example) -> tuple[str, ...]:
    """Add a shortcut around each convolution with binary inputs whose output a batch norm takes; return their names.

    The activation that a batch norm of timm holds comes after the sum. The last such layer gets none: sums grow with
    depth, and its batch norm sets the scale of the features that follow.
    """
    made: dict[nn.Module, nn.Module] = {}
    for layer, norm in list(_find_pairs(model, example).items())[:-1]:
        parts = list(norm.children())
        made[layer] = Shortcut(layer, _plain_norm(norm) if parts else norm)
        made[norm] = nn.Sequential(*parts).train(norm.training) if parts else nn.Identity()
    names = tuple(name for name, module in model.named_modules() if isinstance(module, BinaryConv2d) and module in made)
    replace_modules(model, made)
    return names


def _find_pairs(model: nn.Module, example: Example) -> dict[BinaryConv2d, _BatchNorm]:
    """Return each convolution with binary inputs and its batch norm; both are called once, and shapes can match."""
    made: dict[int, tuple[BinaryConv2d, Tensor]] = {}
    pairs: list[tuple[BinaryConv2d, _BatchNorm]] = []

    def after_layer(layer: BinaryConv2d, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        size = [math.ceil(length / step) for length, step in zip(inputs[0].shape[2:], layer.stride, strict=True)]
        if list(output.shape[2:]) == size:
            made[id(output)] = layer, output  # the tensor is kept, so that its id stays its own

    def after_norm(norm: _BatchNorm, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        found = made.get(id(inputs[0]))
        if found is not None and _is_split_exactly(norm, inputs[0], output):
            pairs.append((found[0], norm))

    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, BinaryConv2d) and module.input_quantizer is not None:
                hooks.enter_context(module.register_forward_hook(after_layer))
            elif isinstance(module, _BatchNorm):
                hooks.enter_context(module.register_forward_hook(after_norm))
        run_in_eval(model, example)
    layers, norms = [layer for layer, _ in pairs], [norm for _, norm in pairs]
    return {layer: norm for layer, norm in pairs if layers.count(layer) == 1 == norms.count(norm)}


def _is_split_exactly(norm: _BatchNorm, inputs: Tensor, output: Tensor) -> bool:
    """Return whether the norm computes torch's batch norm, and then the modules it holds, one after the other."""
    return torch.equal(nn.Sequential(_plain_norm(norm), *norm.children()).eval()(inputs), output)


def _plain_norm(norm: _BatchNorm) -> nn.BatchNorm2d:
    """Return torch's batch norm with the parameters and statistics of ``norm``."""
    plain = nn.BatchNorm2d(norm.num_features, norm.eps, norm.momentum)
    plain._parameters, plain._buffers = dict(norm._parameters), dict(norm._buffers)
    plain.affine, plain.track_running_stats = norm.affine, norm.track_running_stats
    return plain.train(norm.training)
