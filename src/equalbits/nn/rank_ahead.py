"""Symbols found before they are needed: all bi-half layers of a net ranked at once, while a batch is being made.

A layer in training usually ranks its latents where it multiplies with them. A whole net on a GPU has better: one
launch for all rows of a size, on streams of their own beside whatever else the device has to do before the net.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from equalbits.functional import positive_count
from equalbits.nn.ahead import FINDERS
from equalbits.nn.binary_layer import BinaryLayer
from equalbits.nn.layers import BinaryConv1d, BinaryConv2d, BinaryLinear
from equalbits.nn.quantizer import BiHalf


class RankedAhead:
    """The scaled symbols of a net's bi-half layers, in a dtype of choice, found when told to.

    Tell it to :meth:`rank` as soon as the latents have changed. Inside ``with`` the layers multiply with what is
    found, in training, and each waits for its own; outside they find their symbols themselves. The latents must stay
    where they are in memory, and the quantizers' ``p_pos`` as it is.
    """

    def __init__(self, layers: Sequence[BinaryLayer], dtype: torch.dtype) -> None:
        from equalbits.functional.kernels.rank_model import Layer, Ranking  # Triton loads when first needed

        self.layers = layers
        self.found = [torch.empty_like(layer.weight, dtype=dtype, requires_grad=False) for layer in layers]
        self.ranking = Ranking(
            [
                Layer(layer.weight.detach(), found, layer.scale, _negatives(layer))
                for layer, found in zip(layers, self.found, strict=True)
            ]
        )
        self.device = layers[0].weight.device
        self.streams = [torch.cuda.Stream(self.device) for _ in range(len(self.ranking))]  # type: ignore[no-untyped-call]
        self.begun = False

    def rank(self) -> None:
        """Begin, once all that the current stream was told so far is done."""
        for number, stream in enumerate(self.streams):
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(stream):
                self.ranking.launch(number)
        self.begun = True

    def forget(self) -> None:
        """Have the next ``with`` rank anew, whatever was begun before."""
        self.begun = False

    def __enter__(self) -> None:
        if not self.begun:
            self.rank()
        FINDERS.stack.append(self._symbols)
        for number, (layer, found) in enumerate(zip(self.layers, self.found, strict=True)):
            layer.ahead = number, found.dtype

    def __exit__(self, *_: object) -> None:
        self.forget()
        for layer in self.layers:
            layer.ahead = None
        FINDERS.stack.remove(self._symbols)
        for stream in self.streams:  # whether or not every layer was asked
            torch.cuda.current_stream(self.device).wait_stream(stream)

    def _symbols(self, number: int) -> Tensor:
        stream = self.streams[self.ranking.launch_of[number]]
        torch.cuda.current_stream(self.device).wait_stream(stream)
        return self.found[number]


def rank_ahead(model: nn.Module, dtype: torch.dtype) -> RankedAhead | None:
    """What finds the symbols of a model's bi-half layers ahead of a step; None where there is nothing to gain.

    That needs a GPU, Triton, and layers whose latents are float32. Others find their symbols as ever.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, BinaryLayer) and _is_served(layer)]
    if len({layer.weight.device for layer in layers}) != 1 or layers[0].weight.device.type != "cuda":
        return None
    try:
        from equalbits.functional.kernels.rank_model import can_rank
    except ImportError:
        return None
    layers = [layer for layer in layers if can_rank(layer.weight)]
    return RankedAhead(layers, dtype) if layers else None


def _is_served(layer: BinaryLayer) -> bool:
    """Whether it is one of ours, filters first, with the plain ranking and gradient: a subclass may do otherwise.

    Its latents must be a parameter, not computed anew for each pass, and its scale one constant: a kernel reads it as a
    number, and no gradient would reach it.
    """
    ours, quantizer = type(layer) in (BinaryLinear, BinaryConv1d, BinaryConv2d), layer.weight_quantizer
    constant = layer.scale.shape == () and layer.scale.dtype == torch.float32 and not layer.scale.requires_grad
    kept = constant and isinstance(layer.weight, nn.Parameter)
    return ours and kept and type(quantizer) is BiHalf and quantizer.estimator == "straight"


def _negatives(layer: BinaryLayer) -> int:
    weight: Tensor = layer.weight
    connections, p_pos = weight[0].numel(), layer.weight_quantizer.p_pos
    assert p_pos is not None
    return connections - positive_count(connections, p_pos)
