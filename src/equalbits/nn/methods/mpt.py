"""Multi-Prize Tickets (Diffenderfer and Kailkhura 2021): frozen signs, pruned by learned scores."""

import math

from torch import Tensor

from equalbits import functional as F
from equalbits.nn.methods.pruned import PrunedSign, start_scores
from equalbits.nn.quantizer import fitted
from equalbits.nn.registry import register_quantizer


def mpt_values(latents: Tensor, mask: Tensor) -> Tensor:
    """Return ``a · sign(w)`` where kept, else 0, with ``a`` the mean ``|w|`` of the layer's kept weights."""
    kept = mask.to(latents.dtype)
    # Sum and count of a layer may exceed 65504, the largest float16.
    total = (latents.detach().abs() * kept).sum(dtype=F.at_least_float32(latents.dtype))
    scale = (total / mask.sum().clamp(min=1)).to(latents.dtype)
    return scale * F.sign_symbols(latents) * kept


@register_quantizer("mpt")
class MPT(PrunedSign):
    """``a · sign(w)`` where the score's magnitude is among the largest of the layer, else 0.

    ``a`` is the mean ``|w|`` of the kept weights. Only the scores are trained, by ``g · w · sign(s)`` (edge-popup); the
    latents get no gradient. Start the layer with ``init="kaiming"``, as the method does. ``scale_fan`` multiplies by
    ``1/√(1 − sparsity)``, as if the latents had been initialized for the connections that are kept. Without it the
    activations of a net without batch norm shrink from layer to layer, and a deep one at high sparsity does not train.
    The authors' setting of that name divides by ``√sparsity`` instead, since their pruning rate is the share that is
    kept: at 90 % sparsity 1.05 where this has 3.16. A batch norm cancels it.

    >>> [float(MPT(0.75, scale_fan=on).initial_scale(64)) for on in (False, True)]
    [1.0, 2.0]
    """

    train_latent = False

    def fit_(self, latents: Tensor) -> None:
        """Create the scores, and the mask of a global ranking."""
        super().fit_(latents)
        self.scores = start_scores(latents)

    def importance(self, latents: Tensor) -> Tensor:
        """Return the magnitude of the scores, which the mask ranks."""
        return fitted(self, "scores").detach().abs()

    def forward(self, latents: Tensor) -> Tensor:
        """Return ``a · symbols``; the gradient goes to the scores alone."""
        fixed, scores = latents.detach(), fitted(self, "scores")
        values = mpt_values(fixed, self.symbols(latents) != 0)
        return self.corrected(F.edge_popup(fixed, scores, values, fixed * scores.detach().sign()))

    def initial_scale(self, connections: int) -> float:
        """Return 1, since the method multiplies by its own ``a``; ``1/√(1 − sparsity)`` with ``scale_fan``."""
        return 1 / math.sqrt(1 - self.sparsity) if self.scale_fan else 1.0
