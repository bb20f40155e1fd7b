"""BinaryConnect (Courbariaux et al. 2015): the sign, with latents clipped to ±1. BNN's weights are the same."""

import torch
from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import SignQuantizer
from equalbits.nn.registry import register_quantizer


def binaryconnect(latents: Tensor, *, stochastic: bool = False) -> Tensor:
    """Return the sign of each weight, or a stochastic sign; the gradient passes where ``|w| ≤ 1``.

    The published method passes the gradient everywhere and clips the latents to ±1 after each step, so that a latent at
    the bound can only move inwards. This function applies that rule to the gradient.
    """
    symbols = stochastic_symbols(latents) if stochastic else F.sign_symbols(latents)
    return F.clipped(latents, symbols, inclusive=True)


def stochastic_symbols(latents: Tensor) -> Tensor:
    """Draw +1 with probability ``(w + 1)/2`` clipped to [0, 1], else −1, from torch's generator."""
    probability = latents.detach().add(1).div(2)
    return torch.where(torch.rand_like(probability) < probability, 1.0, -1.0).to(latents.dtype)


@register_quantizer("bnn")
@register_quantizer("binaryconnect")
class BinaryConnect(SignQuantizer):
    """Signs with the layer's scale ``√(2/D)`` and latents clipped to ±1 after each step.

    ``stochastic`` draws the values in training and takes the sign in eval; ``symbols`` are always signs. It needs
    latents that fill ±1, since near 0 every draw is a coin toss. A custom training loop calls
    :func:`~equalbits.nn.after_step_` to clip the latents.

    >>> BinaryConnect()(torch.tensor([[-0.5, 0.0, 2.0]]))
    tensor([[-1.,  1.,  1.]])
    """

    def __init__(self, *, stochastic: bool = False) -> None:
        super().__init__()
        self.stochastic = stochastic

    def forward(self, latents: Tensor) -> Tensor:
        """Quantize by :func:`binaryconnect`."""
        return binaryconnect(latents, stochastic=self.stochastic and self.training)

    def after_step_(self, latents: Tensor) -> None:
        """Clip the latents to ±1: no gradient would bring them back from further out."""
        latents.clamp_(-1.0, 1.0)
