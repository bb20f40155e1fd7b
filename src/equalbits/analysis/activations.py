"""The bits that flow into binary layers: per channel, how often they are +1, and the entropy of that."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from equalbits.analysis.observe import binary_layers, device_and_dtype, observing
from equalbits.functional import binary_entropy
from equalbits.nn import BinaryLayer


@dataclass(frozen=True, eq=False)
class ActivationBits:
    """What flowed into one layer: of ``total`` inputs to each channel, ``positive`` were +1."""

    positive: Tensor
    total: int

    @property
    def share(self) -> Tensor:
        """The share of +1 of each channel."""
        return self.positive / self.total

    @property
    def entropy(self) -> Tensor:
        """Bits of entropy of each channel."""
        return binary_entropy(self.share)


def activation_bits(model: nn.Module, batches: Iterable[Tensor | tuple[Tensor, ...]]) -> dict[str, ActivationBits]:
    """Count, for each input channel of each binary layer, how often the sign of what flows in is +1 (0 counts as +1).

    ``batches`` gives inputs, or tuples that begin with them, as a loader of (images, labels) does. The sign is taken of
    the input as the layer sees it, after its input quantizer where there is one. The model is left as found.

    >>> import torch
    >>> from equalbits.nn import BinaryLinear
    >>> model = nn.Sequential(BinaryLinear(2, 3))
    >>> activation_bits(model, [torch.tensor([[1.0, -1.0], [2.0, 3.0]])])["0"].share
    tensor([1.0000, 0.5000])
    """
    layers = binary_layers(model)
    positive: dict[str, Tensor] = {}
    total = dict.fromkeys(layers, 0)

    def onlooker(name: str, layer: nn.Module, given: Tensor | None, output: Any) -> None:
        assert isinstance(layer, BinaryLayer) and given is not None
        _, axis = layer.input_channels() or (None, 1)  # counted from the last, so that an input without a batch will do
        bits = (layer.quantize_input(given) >= 0).movedim(axis, 0).flatten(1)  # (channel, input)
        positive[name] = bits.sum(dim=1) + positive.get(name, 0)
        total[name] += bits.shape[1]

    device, _ = device_and_dtype(model)
    with observing(model, layers, onlooker):
        for batch in batches:
            model((batch if isinstance(batch, Tensor) else batch[0]).to(device))
    if not positive:
        raise ValueError("no input reached a binary layer: batches is empty, or the model calls none of its layers")
    return {name: ActivationBits(counts.cpu(), total[name]) for name, counts in positive.items()}
