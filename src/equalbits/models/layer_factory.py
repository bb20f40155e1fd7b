"""What a network is made of: binary layers or their real twins, from one set of choices."""

import copy
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, nn

from equalbits.nn import BinaryConv2d, BinaryLinear, QuickConv2d, RSign, WeightQuantizer

Layer = TypeVar("Layer", nn.Conv2d, nn.Linear)


@dataclass(frozen=True)
class LayerFactory:
    """Makes the layers of a network, so that the network says where they stand and not how they are quantized.

    ``weight_quantizer=None`` makes torch's own layers in the same places: the real twin. ``input_quantizer=None``
    leaves what flows into them real. ``init`` is ``"torch"`` (as torch starts a layer) or ``"kaiming"`` (normal,
    ``√(2/D)``), for binary and real layers alike: from one seed, twins start with the same weights.

    >>> LayerFactory(None).conv2d(3, 8, 3, bias=False)
    Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), bias=False)
    """

    weight_quantizer: WeightQuantizer | None
    input_quantizer: nn.Module | None = None
    init: str = "torch"

    def __post_init__(self) -> None:
        if self.init not in ("torch", "kaiming"):
            raise ValueError(f"init={self.init!r} is not known: choose 'torch' (as torch starts a layer) or 'kaiming'")

    @property
    def binary_inputs(self) -> bool:
        """Whether inputs are quantized too; networks have other blocks then."""
        return self.input_quantizer is not None

    def conv2d(self, *shape: Any, real_input: bool = False, **settings: Any) -> nn.Module:
        """A binary convolution with torch's arguments. ``real_input`` leaves its input be, as for images."""
        inputs = None if real_input else self._fitted(shape[0])
        if self.weight_quantizer is not None:
            return BinaryConv2d(*shape, **self._with_quantizers(settings, inputs))
        return self._start(QuickConv2d(*shape, **settings) if inputs is None else _Conv2d(inputs, *shape, **settings))

    def linear(self, *shape: Any, real_input: bool = False, **settings: Any) -> nn.Module:
        """A binary linear layer with torch's arguments; ``real_input`` as for :meth:`conv2d`."""
        inputs = None if real_input else self._fitted(shape[0])
        if self.weight_quantizer is not None:
            return BinaryLinear(*shape, **self._with_quantizers(settings, inputs))
        return self._start(nn.Linear(*shape, **settings) if inputs is None else _Linear(inputs, *shape, **settings))

    def real_conv2d(self, *shape: Any, **settings: Any) -> nn.Conv2d:
        """A convolution that stays real: a stem or a shortcut."""
        return self._start(QuickConv2d(*shape, **settings))

    def real_linear(self, *shape: Any, **settings: Any) -> nn.Linear:
        """A linear layer that stays real: a classifier."""
        return self._start(nn.Linear(*shape, **settings))

    def activation(self) -> nn.Module:
        """ReLU before real inputs. Before binary ones Hardtanh: behind a ReLU every sign would be +1."""
        return nn.Hardtanh() if self.binary_inputs else nn.ReLU()

    def _fitted(self, channels: int) -> nn.Module | None:
        """The input quantizer, told how many channels flow in where it has a parameter for each, as RSign has."""
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
    """Real weights, quantized input: the first step of those who train binary networks in two."""

    def __init__(self, input_quantizer: nn.Module, *shape: Any, **settings: Any) -> None:
        super().__init__(*shape, **settings)
        self.input_quantizer = copy.deepcopy(input_quantizer)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(self.input_quantizer(input))


class _Linear(nn.Linear):
    """As :class:`_Conv2d`, for a linear layer."""

    def __init__(self, input_quantizer: nn.Module, *shape: Any, **settings: Any) -> None:
        super().__init__(*shape, **settings)
        self.input_quantizer = copy.deepcopy(input_quantizer)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(self.input_quantizer(input))
