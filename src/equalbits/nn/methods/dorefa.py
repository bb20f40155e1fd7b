"""DoReFa-Net in one bit (Zhou et al. 2016): signs times the mean magnitude of the layer."""

from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import SignQuantizer
from equalbits.nn.registry import register_quantizer


def dorefa(latents: Tensor) -> Tensor:
    """Return the signs times the layer's mean ``|w|``; the gradient is unchanged."""
    return F.straight_through(latents, F.sign_symbols(latents) * latents.detach().abs().mean())


@register_quantizer("dorefa")
class DoReFa(SignQuantizer):
    """Signs times the mean ``|w|`` of the layer, straight-through gradient."""

    has_own_scale = True

    def forward(self, latents: Tensor) -> Tensor:
        """Quantize by :func:`dorefa`."""
        return dorefa(latents)
