"""BNN+ (Darabi et al. 2018): signs times a learned gain per filter, the SwishSign gradient, and a penalty."""

import torch
from torch import Tensor, nn

from equalbits import functional as F
from equalbits.nn.binary_layer import BinaryLayer
from equalbits.nn.quantizer import WeightQuantizer
from equalbits.nn.quantizer_state import fitted, scale_filters
from equalbits.nn.registry import register_quantizer


def distance_to_scale(latents: Tensor, scale: Tensor, *, power: int = 1) -> Tensor:
    """Return the regularizer ``Σ |a − |w||`` (power 1) or ``Σ (a − |w|)²`` (power 2), which pulls weights towards ±a.

    ``scale`` holds one ``a`` per filter, or one for all. The gradient flows to the latents and to the scale. The sum is
    taken in float32 at least.

    >>> distance_to_scale(torch.tensor([[0.5, -2.0]]), torch.tensor([1.0]), power=2)
    tensor(1.2500)
    """
    if power not in (1, 2):
        raise ValueError(f"power={power} is not known: choose 1 (absolute distance) or 2 (squared)")
    gap = scale.reshape(-1, 1) - F.as_filters(latents).to(F.at_least_float32(latents.dtype)).abs()
    return gap.abs().sum() if power == 1 else gap.square().sum()


@register_quantizer("bnn-plus")
class BNNPlus(WeightQuantizer):
    """``gain · sign(w)`` with the gradient of :func:`~equalbits.functional.swish_sign` with steepness ``beta``.

    The gains start at the filter's mean ``|w|``, where the squared penalty is least; the paper does not say. The method
    adds ``penalty_weight · Σ |gain − |w||`` to the loss, the paper's R1; a custom loop adds :func:`bnn_plus_penalty`.
    """

    has_own_scale = True
    gains: nn.Parameter | None

    def __init__(self, beta: float = 5.0, *, penalty_weight: float = 1e-6) -> None:
        super().__init__()
        if not penalty_weight >= 0:
            raise ValueError(
                f"penalty_weight={penalty_weight} would push weights off their scale: it must be 0 or more"
            )
        F.check_beta(beta)
        self.beta, self.penalty_weight = beta, penalty_weight
        self.register_parameter("gains", None)

    def fit_(self, latents: Tensor) -> None:
        """Create one gain per filter, starting at its mean ``|w|``."""
        self.gains = nn.Parameter(F.as_filters(latents).abs().mean(dim=1))

    def symbols(self, latents: Tensor) -> Tensor:
        """Return the sign of each latent."""
        return F.sign_symbols(latents)

    def forward(self, latents: Tensor) -> Tensor:
        """Return the signs times the gains, with the SwishSign slope."""
        return scale_filters(F.swish_sign(latents, self.symbols(latents), self.beta), self.gains)

    def penalty(self, latents: Tensor) -> Tensor:
        """Return the weighted distance of the latents to ±gain."""
        return self.penalty_weight * distance_to_scale(latents, fitted(self.gains))


def bnn_plus_penalty(model: nn.Module, *, power: int = 1) -> Tensor:
    """Sum :func:`distance_to_scale` over all layers with :class:`BNNPlus`; add ``λ`` times it to the loss.

    ``power`` is 1 for the paper's R1, 2 for the squares (R2).
    """
    penalties = [
        distance_to_scale(layer.to_filters(layer.weight), fitted(layer.weight_quantizer.gains), power=power)
        for layer in model.modules()
        if isinstance(layer, BinaryLayer) and isinstance(layer.weight_quantizer, BNNPlus)
    ]
    if not penalties:
        raise ValueError("no layer has the BNNPlus quantizer, so there is no penalty to compute")
    return torch.stack(penalties).sum()
