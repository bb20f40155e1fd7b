"""Factory for the layers of a network: binary, or real in the same positions."""

import copy
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, nn

from equalbits.nn import BinaryConv2d, BinaryLinear, QuickConv2d, RSign, WeightQuantizer

Layer = TypeVar("Layer", nn.Conv2d, nn.Linear)


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
        if self.init not in ("torch", "kaiming"):
            raise ValueError(f"init={self.init!r} is not known: choose 'torch' (torch's default) or 'kaiming'")

    @property
    def binary_inputs(self) -> bool:
        """True if layer inputs are quantized too; networks then use other blocks."""
        return self.input_quantizer is not None

    def conv2d(self, *shape: Any, real_input: bool = False, **settings: Any) -> nn.Module:
        """Create a binary convolution with torch's arguments; ``real_input`` leaves its input real, as for images."""
        inputs = None if real_input else self._fitted(shape[0])
        if self.weight_quantizer is not None:
            return BinaryConv2d(*shape, **self._with_quantizers(settings, inputs))
        return self._start(QuickConv2d(*shape, **settings) if inputs is None else _Conv2d(inputs, *shape, **settings))

    def linear(self, *shape: Any, real_input: bool = False, **settings: Any) -> nn.Module:
        """Create a binary linear layer with torch's arguments; ``real_input`` as for :meth:`conv2d`."""
        inputs = None if real_input else self._fitted(shape[0])
        if self.weight_quantizer is not None:
            return BinaryLinear(*shape, **self._with_quantizers(settings, inputs))
        return self._start(nn.Linear(*shape, **settings) if inputs is None else _Linear(inputs, *shape, **settings))

    def real_conv2d(self, *shape: Any, **settings: Any) -> nn.Conv2d:
        """Create a real convolution: a stem or a shortcut."""
        return self._start(QuickConv2d(*shape, **settings))

    def real_linear(self, *shape: Any, **settings: Any) -> nn.Linear:
        """Create a real linear layer: a classifier."""
        return self._start(nn.Linear(*shape, **settings))

    def activation(self) -> nn.Module:
        """Create a ReLU, or a Hardtanh if inputs are binary: after a ReLU every sign would be +1."""
        return nn.Hardtanh() if self.binary_inputs else nn.ReLU()

    def _fitted(self, channels: int) -> nn.Module | None:
        """Return a copy of the input quantizer, fitted to the number of channels if it has a parameter for each."""
        inputs = copy.deepcopy(self.input_quantizer)
        if isinstance(inputs, RSign):
            inputs.fit_(channels)
        return inputs

    def _with_quantizers(self, settings: dict[str, Any], inputs: nn.Module | None) -> dict[str, Any]:
        quantizers = {"weight_quantizer": self.weight_quantizer, "input_quantizer": inputs}
        return {**settings, **quantizers, "init": self.init}

    def _start(self, layer: Layer) -> Layer:
        if self.init == "kaiming":
            nn.init.kaiming_normal_(layer.weight)
        return layer


class _Conv2d(nn.Conv2d):
    """Convolution with real weights and quantized input, for two-step training of binary networks."""

    def __init__(self, input_quantizer: nn.Module, *shape: Any, **settings: Any) -> None:
        super().__init__(*shape, **settings)
        self.input_quantizer = copy.deepcopy(input_quantizer)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(self.input_quantizer(input))


class _Linear(nn.Linear):
    """Linear layer with real weights and quantized input."""

    def __init__(self, input_quantizer: nn.Module, *shape: Any, **settings: Any) -> None:
        super().__init__(*shape, **settings)
        self.input_quantizer = copy.deepcopy(input_quantizer)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(self.input_quantizer(input))
