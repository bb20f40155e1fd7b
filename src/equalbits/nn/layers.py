"""Torch's layers with binary weights: the same arguments, plus a quantizer for the weights and one for the input.

The layer's ``weight`` stays the real latent, under torch's own name, so optimizers, ``state_dict`` and checkpoints of
the real layer keep working. What it multiplies with is ``scale · quantizer(weight)``.
"""

import copy
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from equalbits.nn.quantizers import BiHalf, WeightQuantizer


class BinaryLayer(nn.Module):
    """What all binary layers share: quantizers, scale, and symbols that are found once per change of the latents."""

    weight: Tensor
    scale: Tensor
    weight_quantizer: WeightQuantizer
    input_quantizer: nn.Module | None

    def make_binary_(
        self, weight_quantizer: WeightQuantizer | None, input_quantizer: nn.Module | None, init: str = "torch"
    ) -> None:
        """Take the quantizers in (copies, so layers share no state), set the scale, start the latents."""
        _start_latents_(self, init)
        self.weight_quantizer = copy.deepcopy(weight_quantizer) if weight_quantizer is not None else BiHalf()
        self.input_quantizer = copy.deepcopy(input_quantizer)
        filters = self.to_filters(self.weight.detach())
        self.weight_quantizer.to(device=filters.device, dtype=filters.dtype).fit_(filters)
        scale = self.weight_quantizer.initial_scale(filters[0].numel())
        self.register_buffer("scale", torch.tensor(scale, dtype=filters.dtype, device=filters.device))
        self._known: tuple[list[Tensor], str, Tensor] | None = None

    def to_filters(self, weight: Tensor) -> Tensor:
        """The weight with the filter as first axis."""
        return weight

    def from_filters(self, filters: Tensor) -> Tensor:
        """The inverse of :meth:`to_filters`."""
        return filters

    def binary_weight(self) -> Tensor:
        """``scale · symbols``, joined to the latents by the quantizer's gradient: what the layer multiplies with."""
        filters = self.to_filters(self.weight)
        known = None if self.training or _is_traced(filters) else self.symbols()
        return self.from_filters(self.weight_quantizer(filters, known)) * self.scale

    def symbols(self) -> Tensor:
        """The symbols of the latents as they are now, filter first, without gradient.

        They are kept, and found anew only when a latent, a tensor of the quantizer or one of its settings differs
        from the time they were found. The values themselves are compared: a write through ``.data`` counts.
        """
        filters = self.to_filters(self.weight.detach())
        found_from = [filters, *self.weight_quantizer.buffers(), *self.weight_quantizer.parameters()]
        settings = repr(self.weight_quantizer)
        if self._known is not None:
            tensors, settings_then, symbols = self._known
            if settings_then == settings and all(map(_same, tensors, found_from)):
                return symbols
        symbols = self.weight_quantizer.symbols(filters)
        self._known = ([tensor.detach().clone() for tensor in found_from], settings, symbols)
        return symbols

    def train(self, mode: bool = True) -> Self:
        """Set the mode; training needs no symbols kept, so they are let go."""
        if mode:
            self._known = None
        return super().train(mode)

    def quantize_input(self, inputs: Tensor) -> Tensor:
        """The input as the layer sees it."""
        return inputs if self.input_quantizer is None else self.input_quantizer(inputs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The scale is a constant of the layer, so the checkpoint of a real model, which has none, loads too.
        state_dict.setdefault(prefix + "scale", self.scale)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": None}


class BinaryLinear(BinaryLayer, nn.Linear):
    """:class:`torch.nn.Linear` with binary weights; a filter is the weights of one output.

    >>> layer = BinaryLinear(8, 3, bias=False)
    >>> (layer.symbols() == 1).sum(dim=1)
    tensor([4, 4, 4])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        weight_quantizer: WeightQuantizer | None = None,
        input_quantizer: nn.Module | None = None,
        init: str = "torch",
    ) -> None:
        nn.Linear.__init__(self, in_features, out_features, bias, device=device, dtype=dtype)
        self.make_binary_(weight_quantizer, input_quantizer, init)

    def forward(self, input: Tensor) -> Tensor:
        """As torch's, with binary weights."""
        return nnf.linear(self.quantize_input(input), self.binary_weight(), self.bias)


class BinaryConv1d(BinaryLayer, nn.Conv1d):
    """:class:`torch.nn.Conv1d` with binary weights; a filter is the weights of one output channel."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        padding: str | int | tuple[int] = 0,
        dilation: int | tuple[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        weight_quantizer: WeightQuantizer | None = None,
        input_quantizer: nn.Module | None = None,
        init: str = "torch",
    ) -> None:
        shape = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode)
        nn.Conv1d.__init__(self, *shape, device=device, dtype=dtype)
        self.make_binary_(weight_quantizer, input_quantizer, init)

    def forward(self, input: Tensor) -> Tensor:
        """As torch's, with binary weights; padding comes after the input's sign, so it stays 0."""
        output: Tensor = self._conv_forward(self.quantize_input(input), self.binary_weight(), self.bias)
        return output


class BinaryConv2d(BinaryLayer, nn.Conv2d):
    """:class:`torch.nn.Conv2d` with binary weights; a filter is the weights of one output channel.

    >>> layer = BinaryConv2d(3, 16, 3, padding=1, weight_quantizer=BiHalf(p_pos=0.25))
    >>> (layer.symbols() == 1).flatten(1).sum(dim=1).unique()  # of 27
    tensor([7])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: str | int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        weight_quantizer: WeightQuantizer | None = None,
        input_quantizer: nn.Module | None = None,
        init: str = "torch",
    ) -> None:
        shape = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode)
        nn.Conv2d.__init__(self, *shape, device=device, dtype=dtype)
        self.make_binary_(weight_quantizer, input_quantizer, init)

    def forward(self, input: Tensor) -> Tensor:
        """As torch's, with binary weights; padding comes after the input's sign, so it stays 0."""
        output: Tensor = self._conv_forward(self.quantize_input(input), self.binary_weight(), self.bias)
        return output


class BinaryConvTranspose2d(BinaryLayer, nn.ConvTranspose2d):
    """:class:`torch.nn.ConvTranspose2d` with binary weights; a filter is the weights of one output channel.

    Torch keeps the output channel of this layer's weight in the second axis (and counts it within its group).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        output_padding: int | tuple[int, int] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, int] = 1,
        padding_mode: Literal["zeros"] = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        weight_quantizer: WeightQuantizer | None = None,
        input_quantizer: nn.Module | None = None,
        init: str = "torch",
    ) -> None:
        shape = (in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias)
        nn.ConvTranspose2d.__init__(self, *shape, dilation, padding_mode, device=device, dtype=dtype)
        self.make_binary_(weight_quantizer, input_quantizer, init)

    def to_filters(self, weight: Tensor) -> Tensor:
        """(in, out/groups, …) to (out, in/groups, …)."""
        grouped = weight.reshape(self.groups, -1, *weight.shape[1:]).transpose(1, 2)
        return grouped.reshape(self.out_channels, -1, *weight.shape[2:])

    def from_filters(self, filters: Tensor) -> Tensor:
        """(out, in/groups, …) to (in, out/groups, …)."""
        grouped = filters.reshape(self.groups, -1, *filters.shape[1:]).transpose(1, 2)
        return grouped.reshape(self.in_channels, -1, *filters.shape[2:])

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """As torch's, with binary weights."""
        output_padding = self._output_padding(
            input,
            output_size,
            list(self.stride),
            list(self.padding),  # type: ignore[arg-type]
            list(self.kernel_size),
            num_spatial_dims=2,
            dilation=list(self.dilation),
        )
        return nnf.conv_transpose2d(
            self.quantize_input(input),
            self.binary_weight(),
            self.bias,
            self.stride,
            self.padding,  # type: ignore[arg-type]
            output_padding,
            self.groups,
            self.dilation,
        )


#: The binary layer that takes the place of each real one.
BINARY_FOR: Mapping[type[nn.Module], type[BinaryLayer]] = MappingProxyType(
    {
        nn.Linear: BinaryLinear,
        nn.Conv1d: BinaryConv1d,
        nn.Conv2d: BinaryConv2d,
        nn.ConvTranspose2d: BinaryConvTranspose2d,
    }
)


def binary_twin(layer: nn.Module, weight_quantizer: WeightQuantizer, input_quantizer: nn.Module | None) -> BinaryLayer:
    """The binary layer that does what ``layer`` does, with the same parameters (not copies), hooks and mode."""
    twin = object.__new__(BINARY_FOR[type(layer)])
    for name, value in layer.__dict__.items():
        twin.__dict__[name] = copy.copy(value) if isinstance(value, dict) else value
    twin.make_binary_(weight_quantizer, input_quantizer)
    return twin.train(layer.training)


def _start_latents_(layer: BinaryLayer, init: str) -> None:
    if init == "kaiming":
        connections = layer.to_filters(layer.weight.detach())[0].numel()
        nn.init.normal_(layer.weight, std=math.sqrt(2 / connections))
    elif init != "torch":
        raise ValueError(f"init={init!r} is not known: choose 'torch' (as torch starts the layer) or 'kaiming'")


def _is_traced(tensor: Tensor) -> bool:
    """Whether a graph is being recorded: then what is known now may not be what holds when it runs."""
    return torch.compiler.is_compiling() or (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _same(then: Tensor, now: Tensor) -> bool:
    return then.shape == now.shape and then.dtype == now.dtype and then.device == now.device and torch.equal(then, now)
