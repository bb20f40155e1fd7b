"""Torch's layers with binary weights: torch's arguments, plus a quantizer for the weights and one for the input."""

import copy
from collections.abc import Mapping
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from equalbits import functional as F
from equalbits.nn.binary_layer import BinaryLayer
from equalbits.nn.quantizer import WeightQuantizer


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
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        weight_quantizer: WeightQuantizer | None = None,
        input_quantizer: nn.Module | None = None,
        init: str = "torch",
    ) -> None:
        nn.Linear.__init__(self, in_features, out_features, bias, device=device, dtype=dtype)
        self.make_binary_(weight_quantizer, input_quantizer, init)

    def input_channels(self) -> tuple[int, int]:
        """Return the number of features, and the last axis."""
        return self.in_features, -1

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer with binary weights."""
        quantized, bits = self.quantize_as_bits(input)
        weight, signs = self.operand(quantized, bits)
        if signs:
            return F.linear_of_signs(quantized, weight, self.bias, bits=bits)
        return nnf.linear(quantized, F.with_gradient(weight), self.bias)


class _BinaryConv(BinaryLayer):
    """Base of the convolutions: torch's arguments, plus the quantizers and ``init``."""

    in_channels: int
    kernel_size: tuple[int, ...]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: str | int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        weight_quantizer: WeightQuantizer | None = None,
        input_quantizer: nn.Module | None = None,
        init: str = "torch",
    ) -> None:
        shape = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode)
        super().__init__(*shape, device=device, dtype=dtype)
        self.make_binary_(weight_quantizer, input_quantizer, init)

    def input_channels(self) -> tuple[int, int]:
        """Return the number of input channels, and their axis."""
        return self.in_channels, -1 - len(self.kernel_size)

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer with binary weights; the input is quantized before it is padded with zeros."""
        return self.forward_quantized(*self.quantize_as_bits(input))

    def forward_quantized(self, input: Tensor, bits: F.SignBits | None = None) -> Tensor:
        """Apply the layer to an input that is already quantized, with the bits of ±1 if they are known."""
        weight, signs = self.operand(input, bits)
        return _convolve(cast("nn.Conv1d | nn.Conv2d", self), input, weight, signs=signs)


class BinaryConv1d(_BinaryConv, nn.Conv1d):
    """:class:`torch.nn.Conv1d` with binary weights; a filter is the weights of one output channel."""


class BinaryConv2d(_BinaryConv, nn.Conv2d):
    """:class:`torch.nn.Conv2d` with binary weights; a filter is the weights of one output channel.

    >>> from equalbits.nn import BiHalf
    >>> layer = BinaryConv2d(3, 16, 3, padding=1, weight_quantizer=BiHalf(p_pos=0.25))
    >>> (layer.symbols() == 1).flatten(1).sum(dim=1).unique()  # of 27
    tensor([7])
    """


class QuickConv2d(nn.Conv2d):
    """:class:`torch.nn.Conv2d`, as a matrix product where that is faster (:func:`equalbits.functional.convolve`)."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply the convolution."""
        return _convolve(self, input, self.weight)

    def _get_name(self) -> str:
        return "Conv2d"


def _convolve(
    layer: nn.Conv1d | nn.Conv2d,
    inputs: Tensor,
    weight: Tensor | F.ScaledSymbols,
    *,
    signs: bool | F.SignBits = False,
) -> Tensor:
    """Apply a convolution; ``signs``, True or their bits, keeps a ±1 input for the backward pass as bits."""
    padding, batched = layer.padding, inputs.dim() == len(layer.kernel_size) + 2
    if batched and not isinstance(padding, str) and layer.padding_mode == "zeros":
        if isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.dilation == (1, 1):
            stride = layer.stride[0], layer.stride[1]
            around = padding[0], padding[1]
            return F.convolve(inputs, weight, layer.bias, stride=stride, padding=around, signs=signs)
        if signs:
            settings = F.ConvSettings(layer.stride, padding, layer.dilation, False, layer.output_padding, layer.groups)
            bits = signs if isinstance(signs, F.SignBits) else None
            return F.convolve_signs(inputs, weight, layer.bias, settings, bits=bits)
    output: Tensor = layer._conv_forward(inputs, F.with_gradient(weight), layer.bias)
    return output


class BinaryConvTranspose2d(BinaryLayer, nn.ConvTranspose2d):
    """:class:`torch.nn.ConvTranspose2d` with binary weights; a filter is the weights of one output channel.

    Torch stores the output channels of this layer's weight, counted within their group, in the second axis.
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
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        weight_quantizer: WeightQuantizer | None = None,
        input_quantizer: nn.Module | None = None,
        init: str = "torch",
    ) -> None:
        shape = (in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias)
        nn.ConvTranspose2d.__init__(self, *shape, dilation, padding_mode, device=device, dtype=dtype)
        self.make_binary_(weight_quantizer, input_quantizer, init)

    def to_filters(self, weight: Tensor) -> Tensor:
        """Rearrange (in, out/groups, …) to (out, in/groups, …), or back."""
        return F.exchange_channels(weight, self.groups)

    def from_filters(self, filters: Tensor) -> Tensor:
        """Rearrange (out, in/groups, …) to (in, out/groups, …)."""
        return self.to_filters(filters)

    def input_channels(self) -> tuple[int, int]:
        """Return the number of input channels, and their axis."""
        return self.in_channels, -3

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Apply the layer with binary weights."""
        stride, dilation, padding = list(self.stride), list(self.dilation), [int(size) for size in self.padding]
        kernel = list(self.kernel_size)
        output_padding = self._output_padding(input, output_size, stride, padding, kernel, 2, dilation)
        quantized, bits = self.quantize_as_bits(input)
        weight, signs = self.operand(quantized, bits)
        if input.dim() == 4 and signs:
            settings = F.ConvSettings(stride, padding, dilation, True, output_padding, self.groups)
            return F.convolve_signs(quantized, weight, self.bias, settings, bits=bits)
        return nnf.conv_transpose2d(
            quantized, F.with_gradient(weight), self.bias, stride, padding, output_padding, self.groups, dilation
        )


#: Binary class of each real layer class.
BINARY_CLASSES: Mapping[type[nn.Module], type[BinaryLayer]] = {
    nn.Linear: BinaryLinear,
    nn.Conv1d: BinaryConv1d,
    nn.Conv2d: BinaryConv2d,
    QuickConv2d: BinaryConv2d,
    nn.ConvTranspose2d: BinaryConvTranspose2d,
}


def as_binary_layer(
    layer: nn.Module, weight_quantizer: WeightQuantizer, input_quantizer: nn.Module | None
) -> BinaryLayer:
    """Return a binary version of ``layer`` with the same parameter objects, hooks and mode."""
    binary = object.__new__(BINARY_CLASSES[type(layer)])
    # Hook dictionaries are shared, so that existing handles still remove their hooks; the others are copied.
    own = {name: copy.copy(layer.__dict__[name]) for name in ("_parameters", "_buffers", "_modules")}
    binary.__dict__.update(layer.__dict__ | own)
    binary.__dict__.pop("_compiled_call_impl", None)  # of layer.compile(): it calls the real layer
    binary.make_binary_(weight_quantizer, input_quantizer)
    return binary.train(layer.training)
