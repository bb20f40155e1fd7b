"""Two values per filter with zero mean and unit variance: a control that separates a filter's mean from its entropy.

With ±1 a share of +1 other than one half lowers the entropy of the bits and also moves the mean of the filter. Here the
mean is always 0, whatever the share.
"""

from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import WeightQuantizer
from equalbits.nn.registry import register_quantizer


def zero_mean(latents: Tensor, symbols: Tensor) -> Tensor:
    """Return the symbols minus their filter's mean, divided by their standard deviation; straight through.

    A share ``p`` of +1 gives the values ``√((1 − p)/p)`` and ``−√(p/(1 − p))``; at one half they are ±1. A filter whose
    symbols are all equal becomes 0.
    """
    rows = F.as_filters(symbols)
    mean = rows.mean(dim=1, keepdim=True)
    variance = (1 - mean.square()).clamp(min=1 / rows.shape[1] ** 2)  # 0 only where all symbols are equal
    return F.straight_through(latents, ((rows - mean) * variance.rsqrt()).view(latents.shape))


@register_quantizer("zero-mean")
class ZeroMean(WeightQuantizer):
    """The signs, or with ``p_pos`` exactly that share of +1, shifted to zero mean and scaled to unit variance.

    >>> import torch
    >>> ZeroMean(p_pos=0.2)(torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5]]))
    tensor([[-0.5000, -0.5000, -0.5000, -0.5000,  2.0000]])
    """

    def __init__(self, p_pos: float | None = None) -> None:
        super().__init__()
        if p_pos is not None:
            F.check_p_pos(p_pos)
        self.p_pos = p_pos

    def symbols(self, latents: Tensor) -> Tensor:
        """Return the sign of each latent, or +1 for the top ``p_pos`` of each filter."""
        return F.sign_symbols(latents) if self.p_pos is None else F.transport_symbols(latents, self.p_pos)

    def forward(self, latents: Tensor) -> Tensor:
        """Quantize by :func:`zero_mean`."""
        return zero_mean(latents, self.symbols(latents))
