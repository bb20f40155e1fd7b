"""ReCU (Xu et al. 2021): signs of standardized filters, with the tails clamped so that their weights can flip."""

import math

import torch
from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import GainQuantizer
from equalbits.nn.registry import register_quantizer


def recu(latents: Tensor, tau: Tensor) -> Tensor:
    """Standardize each filter, clamp the tails at a quantile, take the sign.

    ``h = 2√2 (w − mean)/√(var + 1e-5)``, clamped to ``±Q`` with ``Q = −mean|h| · ln(2 − 2·tau)``, the quantile ``tau``
    of a Laplace distribution with the layer's mean ``|h|``. The clamp does not change the sign, only the gradient: it
    is 0 beyond ``±Q``, else straight through the sign and through the standardization. The paper clamps at the
    empirical quantiles ``tau`` and ``1 − tau``; this closed form, and the order, are those of its code.
    """
    rows = F.as_filters(latents)
    centred = rows - rows.mean(dim=1, keepdim=True)
    variance = centred.var(dim=1, keepdim=True, correction=min(1, rows.shape[1] - 1))
    standardized = centred * (2 * math.sqrt(2)) / (variance + 1e-5).sqrt()
    bound = -standardized.detach().abs().mean() * (2 - 2 * tau).log()
    return F.straight_through(standardized.clamp(-bound, bound), F.centred_symbols(rows)).view(latents.shape)


def recu_tau(progress: Tensor, tau_min: float = 0.85, tau_max: float = 0.99) -> Tensor:
    """Return the quantile at a share ``progress`` of training: exponential from ``tau_min`` to ``tau_max``."""
    return tau_min + (tau_max - tau_min) * progress.expm1() / (math.e - 1)


@register_quantizer("recu")
class ReCU(GainQuantizer):
    """Signs of standardized filters times a learned gain per filter.

    The gain starts at the filter's mean ``|w|``; the authors draw it from ``U(0, 1)``, which makes no difference before
    a batch norm. The quantile goes from ``tau_min`` to ``tau_max`` with the progress of training, which
    :func:`~equalbits.nn.set_progress` sets.
    """

    progress: Tensor

    def __init__(self, *, tau_min: float = 0.85, tau_max: float = 0.99) -> None:
        super().__init__()
        if not 0.5 < tau_min <= tau_max <= 1:
            raise ValueError(f"tau_min={tau_min}, tau_max={tau_max}: quantiles of the upper tail grow within (0.5, 1]")
        self.tau_min, self.tau_max = tau_min, tau_max
        self.register_buffer("progress", torch.zeros(()))

    def symbols(self, latents: Tensor) -> Tensor:
        """Return the sign of each latent minus its filter's mean."""
        return F.centred_symbols(latents)

    def forward(self, latents: Tensor) -> Tensor:
        """Quantize by :func:`recu`, times the gains."""
        return self.scale_filters(recu(latents, recu_tau(self.progress, self.tau_min, self.tau_max)))
