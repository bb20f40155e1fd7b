"""Bi-Real Net (Liu et al. 2018): signs times the mean magnitude of each filter, with a gradient free of that scale.

ReActNet (Liu et al. 2020) uses the same weights.
"""

from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import SignQuantizer
from equalbits.nn.registry import register_quantizer


def bireal(latents: Tensor) -> Tensor:
    """Return each filter's signs times its mean ``|w|``, as XNOR-Net does.

    The gradient is ``dw = g · [|w| ≤ 1]``, free of the scale ("magnitude-aware").
    """
    rows = F.as_filters(latents)
    scale = rows.detach().abs().mean(dim=1, keepdim=True)
    return F.clipped(rows, F.sign_symbols(rows) * scale, inclusive=True).view(latents.shape)


@register_quantizer("reactnet")
@register_quantizer("bi-real")
class BiReal(SignQuantizer):
    """Signs times a constant mean ``|w|`` of each filter; the gradient is free of that scale.

    The authors start their latents at ``rand · 0.001``, all positive, so that every first bit is +1. Here a layer
    starts them as torch does, around 0.
    """

    has_own_scale = True

    def forward(self, latents: Tensor) -> Tensor:
        """Quantize by :func:`bireal`."""
        return bireal(latents)
