"""The paper's comparison, part two: methods that learn a scale, or that change as training goes on.

Tell those that follow the training how far it is with :func:`~equalbits.nn.set_progress`.
"""

import torch
from torch import Tensor, nn

from equalbits import functional as F
from equalbits.functional import scaled, standardised
from equalbits.nn.binary_layer import BinaryLayer
from equalbits.nn.gains import fitted, times_gains
from equalbits.nn.quantizer import WeightQuantizer, check_sharpness
from equalbits.nn.registry import register_quantizer


@register_quantizer("xnor-plus-plus")
class XNORPlusPlus(WeightQuantizer):
    """XNOR-Net++ (Bulat and Tzimiropoulos 2019), with a learned scale for each filter: ``gain · sign(w)``.

    The gains start at 1, as published, so a batch norm must stand behind. The sign has the hard-tanh gradient,
    ``gain · g · [|w| ≤ 1]``. A scale for each filter is the paper's first case; for the others, which also scale by
    position, put :class:`~equalbits.nn.LearnedScale` behind a layer with :class:`~equalbits.nn.BinaryConnect`.
    """

    gains: nn.Parameter | None

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("gains", None)

    def fit_(self, latents: Tensor) -> None:
        """One gain for each filter, 1 at first."""
        self.gains = nn.Parameter(latents.new_ones(latents.shape[0]))

    def symbols(self, latents: Tensor) -> Tensor:
        """The sign of each latent."""
        return F.sign_symbols(latents)

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """The gain times the sign."""
        return times_gains(scaled.bounded(latents, symbols), self.gains)

    def initial_scale(self, connections: int) -> float:
        """1: the method learns its own."""
        return 1.0


@register_quantizer("bnn-plus")
class BNNPlus(WeightQuantizer):
    """BNN+ (Darabi et al. 2018): a learned scale for each filter, and the SwishSign gradient.

    ``gain · sign(w)`` with ``beta`` the steepness of :func:`~equalbits.functional.standardised.swish_sign`. The gains
    start at the filter's mean ``|w|``, where the squared penalty is least; the paper does not say. To the loss it adds
    ``penalty_weight · Σ |gain − |w||``, the paper's R1; in a loop of one's own add :func:`bnn_plus_penalty`.
    """

    gains: nn.Parameter | None

    def __init__(self, beta: float = 5.0, *, penalty_weight: float = 1e-6) -> None:
        super().__init__()
        if not penalty_weight >= 0:
            raise ValueError(
                f"penalty_weight={penalty_weight} would push weights off their scale: it must be 0 or more"
            )
        self.penalty_weight = penalty_weight
        standardised.check_steepness(beta)
        self.beta = beta
        self.register_parameter("gains", None)

    def fit_(self, latents: Tensor) -> None:
        """One gain for each filter, its mean ``|w|`` at first."""
        self.gains = nn.Parameter(F.as_filters(latents).abs().mean(dim=1))

    def symbols(self, latents: Tensor) -> Tensor:
        """The sign of each latent."""
        return F.sign_symbols(latents)

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """The gain times the sign, with SwishSign's slope."""
        return times_gains(standardised.swish_sign(latents, symbols, self.beta), self.gains)

    def penalty(self, latents: Tensor) -> Tensor:
        """How far the latents lie from ±gain, weighed."""
        return self.penalty_weight * standardised.distance_to_scale(latents, fitted(self.gains))

    def initial_scale(self, connections: int) -> float:
        """1: the method learns its own."""
        return 1.0

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        weighed = "" if self.penalty_weight == 1e-6 else f", penalty_weight={self.penalty_weight}"
        return f"{self.beta}{weighed}"


@register_quantizer("adabin")
class AdaBin(WeightQuantizer):
    """AdaBin: two values of each filter's own, ``mean ± rms``; see :func:`~equalbits.functional.standardised.adabin`.

    What the layer multiplies with is ``a · symbol + b``, not a multiple of the symbol. ``t_min`` and ``t_max`` are the
    ends of the EDE slope's sharpness.
    """

    progress: Tensor

    def __init__(self, *, t_min: float = 1e-3, t_max: float = 10.0) -> None:
        super().__init__()
        check_sharpness(t_min, t_max)
        self.t_min, self.t_max = t_min, t_max
        self.register_buffer("progress", torch.zeros(()))

    def symbols(self, latents: Tensor) -> Tensor:
        """The sign of each latent after its filter's mean is taken off."""
        return standardised.centred_symbols(latents)

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """``a · symbol + b``, all of it in the graph."""
        return standardised.adabin(latents, F.ede_sharpness(self.progress, self.t_min, self.t_max))

    def initial_scale(self, connections: int) -> float:
        """1: the method brings its own."""
        return 1.0

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        return f"t_min={self.t_min}, t_max={self.t_max}"


@register_quantizer("recu")
class ReCU(WeightQuantizer):
    """ReCU: standardised filters, their tails clamped so that they can flip, times a learned gain for each filter.

    See :func:`~equalbits.functional.standardised.recu`. The gain starts at the filter's mean ``|w|``; the authors draw
    it from ``U(0, 1)``, but behind a batch norm its size does not matter. ``tau`` goes from ``tau_min`` to ``tau_max``
    as training goes on.
    """

    progress: Tensor
    gains: nn.Parameter | None

    def __init__(self, *, tau_min: float = 0.85, tau_max: float = 0.99) -> None:
        super().__init__()
        if not 0.5 < tau_min <= tau_max <= 1:
            raise ValueError(f"tau_min={tau_min}, tau_max={tau_max}: quantiles of the upper tail grow within (0.5, 1]")
        self.tau_min, self.tau_max = tau_min, tau_max
        self.register_parameter("gains", None)
        self.register_buffer("progress", torch.zeros(()))

    def fit_(self, latents: Tensor) -> None:
        """One gain for each filter, its mean ``|w|`` at first."""
        self.gains = nn.Parameter(F.as_filters(latents).abs().mean(dim=1))

    def symbols(self, latents: Tensor) -> Tensor:
        """The sign of each latent after its filter's mean is taken off."""
        return standardised.centred_symbols(latents)

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """The gain times the sign; the gradient through clamp and standardisation."""
        tau = standardised.recu_tau(self.progress, self.tau_min, self.tau_max)
        return times_gains(standardised.recu(latents, tau), self.gains)

    def initial_scale(self, connections: int) -> float:
        """1: the method learns its own."""
        return 1.0

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        return f"tau_min={self.tau_min}, tau_max={self.tau_max}"


def bnn_plus_penalty(model: nn.Module, *, power: int = 1) -> Tensor:
    """The sum over all layers with :class:`BNNPlus` of each weight's distance to ±gain; add ``λ`` times it to the loss.

    ``power`` is 1 for ``Σ |gain − |w||`` (the paper's R1), 2 for the squares (R2).
    """
    penalties = [
        standardised.distance_to_scale(
            layer.to_filters(layer.weight), fitted(layer.weight_quantizer.gains), power=power
        )
        for layer in model.modules()
        if isinstance(layer, BinaryLayer) and isinstance(layer.weight_quantizer, BNNPlus)
    ]
    if not penalties:
        raise ValueError("no layer has the BNNPlus quantizer: there is nothing to pull towards a scale")
    return torch.stack(penalties).sum()
