"""Share of +1 among the inputs of binary layers, per channel, and its entropy."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from equalbits.analysis.layer_hooks import binary_layers, device_and_dtype, observe_calls
from equalbits.functional import binary_entropy
from equalbits.nn import BinaryLayer


@dataclass(frozen=True, eq=False)
class ActivationBits:
    """Counts for one layer: of ``total`` inputs to each channel, ``positive`` were +1."""

    positive: Tensor
    total: int

    @property
    def share(self) -> Tensor:
        """Share of +1 of each channel."""
        return self.positive / self.total

    @property
    def entropy(self) -> Tensor:
        """Entropy of each channel, in bits."""
        return binary_entropy(self.share)


def activation_bits(model: nn.Module, batches: Iterable[Tensor | tuple[Tensor, ...]]) -> dict[str, ActivationBits]:
    """Count the inputs of sign +1 for each input channel of each binary layer (0 counts as +1).

    ``batches`` yields inputs, or tuples whose first element they are, as a loader of (images, labels) does. Inputs are
    counted after the layer's input quantizer, if any. The model is left unchanged.

    >>> import torch
    >>> from equalbits.nn import BinaryLinear
    >>> model = nn.Sequential(BinaryLinear(2, 3))
    >>> activation_bits(model, [torch.tensor([[1.0, -1.0], [2.0, 3.0]])])["0"].share
    tensor([1.0000, 0.5000])
    """
    layers = binary_layers(model)
    positive: dict[str, Tensor] = {}
    total = dict.fromkeys(layers, 0)

    def observer(name: str, layer: nn.Module, inputs: Tensor | None, output: object) -> None:
        assert isinstance(layer, BinaryLayer) and inputs is not None
        _, axis = layer.input_channels() or (None, 1)  # a negative axis, so that inputs without a batch axis work
        bits = (layer.quantize_input(inputs) >= 0).movedim(axis, 0).flatten(1)  # (channel, input)
        positive[name] = bits.sum(dim=1) + positive.get(name, 0)
        total[name] += bits.shape[1]

    device, _ = device_and_dtype(model)
    with observe_calls(model, layers, observer):
        for batch in batches:
            model((batch if isinstance(batch, Tensor) else batch[0]).to(device))
    if not positive:
        raise ValueError(
            "no input reached a binary layer: batches is empty, or the model calls none of its binary layers"
        )
    return {name: ActivationBits(counts.cpu(), total[name]) for name, counts in positive.items()}
