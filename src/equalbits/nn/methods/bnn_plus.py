"""BNN+ (Darabi et al. 2018): signs times a learned gain per filter, the SwishSign gradient, and a penalty."""

from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import GainQuantizer, fitted
from equalbits.nn.registry import register_quantizer


def distance_to_scale(latents: Tensor, scale: Tensor) -> Tensor:
    """Return the paper's regularizer R1, ``Σ |a − |w||`` with one ``a`` per filter, which pulls weights towards ±a.

    The gradient flows to the latents and to the scale. The sum is taken in float32 at least.
    """
    wide = F.as_filters(latents).to(F.at_least_float32(latents.dtype))
    return (scale.reshape(-1, 1) - wide.abs()).abs().sum()


@register_quantizer("bnn-plus")
class BNNPlus(GainQuantizer):
    """``gain · sign(w)`` with the gradient of :func:`~equalbits.functional.swish_sign` with steepness ``beta``.

    The gains start at the filter's mean ``|w|``, which the paper does not say. The method adds ``penalty_weight`` times
    :func:`distance_to_scale` to the loss; a custom loop adds :func:`equalbits.nn.penalty`.
    """

    def __init__(self, beta: float = 5.0, *, penalty_weight: float = 1e-6) -> None:
        super().__init__()
        if not penalty_weight >= 0:
            raise ValueError(
                f"penalty_weight={penalty_weight} would push weights off their scale: it must be 0 or more"
            )
        F.check_beta(beta)
        self.beta, self.penalty_weight = beta, penalty_weight

    def forward(self, latents: Tensor) -> Tensor:
        """Return the signs times the gains, with the SwishSign slope."""
        return self.scale_filters(F.swish_sign(latents, self.symbols(latents), self.beta))

    def penalty(self, latents: Tensor) -> Tensor:
        """Return the weighted distance of the latents to ±gain."""
        return self.penalty_weight * distance_to_scale(latents, fitted(self, "gains"))
