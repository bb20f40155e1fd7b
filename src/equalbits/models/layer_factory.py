"""Factory for the layers of a network: binary, or real in the same positions."""

import copy
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, nn

from equalbits.nn import BinaryConv2d, BinaryLinear, QuickConv2d, RSign, WeightQuantizer, check_choice

RealLayer = nn.Conv2d | nn.Linear
Layer = TypeVar("Layer", bound=RealLayer)
#: Classes of a binary layer, of a real one, and of a real one with quantized input.
Kinds = tuple[type[nn.Module], type[RealLayer], type[RealLayer]]


@dataclass(frozen=True)
class LayerFactory:
    """Creates the layers of a network, so that its definition is independent of the quantizers.

    ``weight_quantizer=None`` creates real layers in the same positions. ``input_quantizer=None`` leaves layer inputs
    real. ``init`` is ``"torch"`` (torch's default) or ``"kaiming"`` (normal, ``√(2/D)``), for binary and real layers
    alike: with one seed, a binary network and its real version start from the same weights.

    >>> LayerFactory(None).conv2d(3, 8, 3, bias=False)
    Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), bias=False)
    """

    weight_quantizer: WeightQuantizer | None
    input_quantizer: nn.Module | None = None
    init: str = "torch"

    def __post_init__(self) -> None:
        check_choice("init", self.init, ("torch", "kaiming"))

    @property
    def binary_inputs(self) -> bool:
        """True if layer inputs are quantized too; networks then use other blocks."""
        return self.input_quantizer is not None

    def conv2d(self, *shape: Any, real_input: bool = False, **settings: Any) -> nn.Module:
        """Create a binary convolution with torch's arguments; ``real_input`` leaves its input real, as for images."""
        return self._layer((BinaryConv2d, QuickConv2d, _QuantizedConv2d), real_input, shape, settings)

    def linear(self, *shape: Any, real_input: bool = False, **settings: Any) -> nn.Module:
        """Create a binary linear layer with torch's arguments; ``real_input`` as for :meth:`conv2d`."""
        return self._layer((BinaryLinear, nn.Linear, _QuantizedLinear), real_input, shape, settings)

    def real_conv2d(self, *shape: Any, **settings: Any) -> nn.Conv2d:
        """Create a real convolution: a stem or a shortcut."""
        return self._start(QuickConv2d(*shape, **settings))

    def real_linear(self, *shape: Any, **settings: Any) -> nn.Linear:
        """Create a real linear layer: a classifier."""
        return self._start(nn.Linear(*shape, **settings))

    def activation(self) -> nn.Module:
        """Create a ReLU, or a Hardtanh if inputs are binary: after a ReLU every sign would be +1."""
        return nn.Hardtanh() if self.binary_inputs else nn.ReLU()

    def _layer(self, kinds: Kinds, real_input: bool, shape: tuple[Any, ...], settings: dict[str, Any]) -> nn.Module:
        """Create a layer: binary, real, or real with a quantized input."""
        binary, real, real_on_bits = kinds
        inputs = None if real_input else self.input_quantizer
        if self.weight_quantizer is not None:
            quantizers = {"weight_quantizer": self.weight_quantizer, "input_quantizer": inputs}
            return binary(*shape, **settings, **quantizers, init=self.init)
        if inputs is None:
            return self._start(real(*shape, **settings))
        layer = real_on_bits(*shape, **settings)
        layer.input_quantizer = copy.deepcopy(inputs)
        if isinstance(layer.input_quantizer, RSign):
            layer.input_quantizer.fit_inputs_(shape[0], axis=1)
        return self._start(layer)

    def _start(self, layer: Layer) -> Layer:
        if self.init == "kaiming":
            nn.init.kaiming_normal_(layer.weight)
        return layer


class _QuantizedInput(nn.Module):
    """Layer with real weights and quantized input, for two-step training of binary networks."""

    input_quantizer: nn.Module

    def forward(self, input: Tensor) -> Tensor:
        outputs: Tensor = super().forward(self.input_quantizer(input))
        return outputs


class _QuantizedConv2d(_QuantizedInput, nn.Conv2d):
    pass


class _QuantizedLinear(_QuantizedInput, nn.Linear):
    pass
