"""XNOR-Net++ (Bulat and Tzimiropoulos 2019): signs times a learned scale per filter."""

from torch import Tensor, nn

from equalbits import functional as F
from equalbits.nn.quantizer import GainQuantizer
from equalbits.nn.registry import register_quantizer


@register_quantizer("xnor-plus-plus")
class XNORPlusPlus(GainQuantizer):
    """``gain · sign(w)`` with one learned gain per filter and the gradient ``gain · g · [|w| ≤ 1]``.

    The gains start at 1, as published, so the layer needs a batch norm behind it. One gain per filter is the paper's
    first case. For the others, which also scale by position, put :class:`~equalbits.nn.LearnedScale` behind a layer
    with :class:`~equalbits.nn.BinaryConnect`.
    """

    def fit_(self, latents: Tensor) -> None:
        """Create one gain per filter, starting at 1."""
        self.gains = nn.Parameter(latents.new_ones(latents.shape[0]))

    def forward(self, latents: Tensor) -> Tensor:
        """Return the signs times the gains."""
        return self.scale_filters(F.sign(latents, estimator="clipped"))
