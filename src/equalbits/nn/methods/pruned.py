"""Pruned quantizers: symbols −1, 0 and +1 with an exact share of zeros. Multi-Prize Tickets are in ``mpt.py``.

``by`` names the pruning rule: rank in the filter, magnitude, or a learned score. The share of +1 among the kept weights
of every filter is exact under each rule: the mask comes first, then the ranking.
"""

import math

import torch
from torch import Tensor, nn

from equalbits import functional as F
from equalbits.nn.quantizer import WeightQuantizer, check_choice, fitted
from equalbits.nn.registry import register_quantizer

_SCOPES = {"rank": ("filter",), "magnitude": ("layer", "filter", "global"), "score": ("layer", "filter", "global")}


class PrunedQuantizer(WeightQuantizer):
    """Base of pruned quantizers: zeros for the share ``sparsity`` of each filter, of the layer, or of the model.

    ``ramp`` is the share of training over which the sparsity rises from one half to its full value; 0 for none. The
    mask of a global ranking is the buffer ``kept`` of ``sieve``; the names are in the keys of checkpoints.
    """

    progress: Tensor | None

    def __init__(self, sparsity: float, scope: str, *, scale_fan: bool, ramp: float) -> None:
        super().__init__()
        F.check_sparsity(sparsity)
        F.check_scope(scope)
        if not F.is_number(ramp) or not 0 <= ramp <= 1:
            raise ValueError(f"ramp={ramp!r} is not a share of training: it must lie in [0, 1]; 0 means no ramp")
        self.sparsity, self.scope, self.scale_fan, self.ramp = float(sparsity), scope, scale_fan, float(ramp)
        if scope == "global":
            self.sieve = nn.Module()
        self.register_buffer("progress", torch.zeros(()) if ramp else None)

    def fit_(self, latents: Tensor) -> None:
        """Create the mask of a global ranking; until ``set_global_masks_``, every weight is kept."""
        if self.scope == "global":
            self.sieve.register_buffer("kept", torch.ones_like(latents, dtype=torch.bool))

    def importance(self, latents: Tensor) -> Tensor:
        """Return the magnitude that the mask ranks."""
        return latents.detach().abs()

    def mask(self, latents: Tensor) -> Tensor:
        """Return a mask that is True where a weight is kept."""
        if self.scope == "global":
            return fitted(self.sieve, "kept")
        return F.keep_largest(self.importance(latents), self.current_sparsity(), scope=self.scope)

    def current_sparsity(self) -> float | Tensor:
        """Return the sparsity at this point of its ramp."""
        return self.sparsity if self.progress is None else F.ramped_sparsity(self.progress, self.sparsity, self.ramp)

    def initial_scale(self, connections: int) -> float:
        """Return ``√(2/(D(1 − sparsity)))``, or ``√(2/D)`` without ``scale_fan``."""
        return math.sqrt(2 / (connections * (1 - self.sparsity if self.scale_fan else 1)))

    def scale_correction(self) -> Tensor | None:
        """Return the factor ``√((1 − sparsity) / share kept)``, which keeps the output variance constant.

        The share kept differs from ``1 − sparsity`` during a ramp and in a global ranking. None if it never differs.
        """
        if not self.scale_fan:
            return None
        if self.scope == "global":
            kept = fitted(self.sieve, "kept")
            share = kept.sum().clamp(min=1) / kept.numel()
        elif self.progress is not None:
            share = 1 - F.ramped_sparsity(self.progress, self.sparsity, self.ramp)
        else:
            return None
        return ((1 - self.sparsity) / share).sqrt()

    def corrected(self, values: Tensor) -> Tensor:
        """Multiply ``values`` by :meth:`scale_correction`, if any."""
        correction = self.scale_correction()
        return values if correction is None else values * correction.to(values.dtype)


@register_quantizer("pruned-bihalf")
class PrunedBiHalf(PrunedQuantizer):
    """Bi-half with the share ``sparsity`` of zeros, and exactly ``p_pos`` of +1 among the kept weights of each filter.

    ``by`` names the rule, ``scope`` the set of weights that it ranks:

    * ``"rank"``: zero the middle ranks of each filter (the paper's released code); the scope is the filter.
    * ``"magnitude"``: zero the smallest ``|w|`` of the layer, of each filter, or of the net; then Eq. 4 on the rest.
    * ``"score"``: zero the smallest ``|s|`` of learned scores (the paper's text, after Multi-Prize Tickets). The
      scores start uniform in ``±1/√D``. Their gradient is ``g · w · sign(s)``, with ``g`` the gradient of the
      quantized weight.

    Latents get the gradient unchanged, pruned ones too, so a weight can return. ``train_latent=False`` (by score) keeps
    them at their initial values. ``scale_fan`` makes the scale ``√(2/(D(1 − sparsity)))``, which a net without batch
    norm needs. With ``ramp`` the sparsity rises from one half over that share of training
    (:func:`~equalbits.nn.set_progress`). A global ranking is made by :func:`~equalbits.nn.set_global_masks_`; before
    the first call every weight is kept. With a ramp or a global ranking the symbols are also multiplied by
    ``√((1 − sparsity) / share kept)``, so that the scale fits the weights currently kept. A filter may become empty:
    see :func:`~equalbits.nn.empty_filters`.

    >>> PrunedBiHalf(1 / 3)(torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]]))
    tensor([[-1., -1.,  0.,  0.,  1.,  1.]])
    >>> PrunedBiHalf(1 / 3, by="magnitude")(torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]]))
    tensor([[ 0.,  0., -1., -1.,  1.,  1.]])
    """

    p_pos: float

    def __init__(
        self,
        sparsity: float = 0.5,
        *,
        p_pos: float = 0.5,
        by: str = "rank",
        scope: str | None = None,
        scale_fan: bool = True,
        train_latent: bool = True,
        ramp: float = 0.0,
    ) -> None:
        F.check_p_pos(p_pos)
        _check_rule(by, scope, train_latent)
        super().__init__(sparsity, scope or _SCOPES[by][0], scale_fan=scale_fan, ramp=ramp)
        self.by, self.train_latent, self.p_pos = by, train_latent, p_pos

    def fit_(self, latents: Tensor) -> None:
        """Create the scores, and the mask of a global ranking."""
        super().fit_(latents)
        if self.by == "score":
            self.scores = start_scores(latents)

    def importance(self, latents: Tensor) -> Tensor:
        """Return the magnitude that the mask ranks: of the scores or of the weights."""
        return (latents if self.by == "magnitude" else fitted(self, "scores")).detach().abs()

    def symbols(self, latents: Tensor) -> Tensor:
        """Return −1, 0 and +1 with exact counts."""
        if self.by == "rank":
            return F.prune_middle_ranks(latents, self.current_sparsity(), self.p_pos)
        return F.transport_symbols(latents, self.p_pos, mask=self.mask(latents))

    def forward(self, latents: Tensor) -> Tensor:
        """Return the symbols, straight through to every latent; by score also ``g · w · sign(s)`` to the scores."""
        symbols = self.symbols(latents)
        if self.by != "score":
            return self.corrected(F.straight_through(latents, symbols))
        scores, correction = fitted(self, "scores"), self.scale_correction()
        # The gradient that arrives here includes the layer's scale; the rule excludes it.
        scale = self.initial_scale(F.as_filters(latents).shape[1]) * (1 if correction is None else correction)
        slope = latents.detach() * scores.detach().sign() / scale
        trained = latents if self.train_latent else latents.detach()
        return self.corrected(F.edge_popup(trained, scores, symbols, slope.to(latents.dtype)))


@register_quantizer("pruned-sign")
class PrunedSign(PrunedQuantizer):
    """Sign with a magnitude mask: 0 for the smallest ``|w|`` of the layer, the sign for the others; straight through.

    Probably the pruned baseline of the paper's figure: at sparsity 0 it is the dense binary net.

    >>> PrunedSign(0.5)(torch.tensor([[-0.1, 0.9], [-0.8, 0.2]]))
    tensor([[ 0.,  1.],
            [-1.,  0.]])
    """

    def __init__(
        self, sparsity: float = 0.5, *, scope: str = "layer", scale_fan: bool = True, ramp: float = 0.0
    ) -> None:
        super().__init__(sparsity, scope, scale_fan=scale_fan, ramp=ramp)

    def symbols(self, latents: Tensor) -> Tensor:
        """Return the sign of each kept latent, 0 elsewhere."""
        return F.sign_symbols(latents).masked_fill(~self.mask(latents), 0.0)

    def forward(self, latents: Tensor) -> Tensor:
        """Return the symbols, straight through to every latent."""
        return self.corrected(F.straight_through(latents, self.symbols(latents)))


def start_scores(latents: Tensor) -> nn.Parameter:
    """Draw one score per latent, uniform in ``±1/√D``."""
    bound = 1 / math.sqrt(F.as_filters(latents).shape[1])
    return nn.Parameter(torch.empty_like(latents).uniform_(-bound, bound))


def _check_rule(by: str, scope: str | None, train_latent: bool) -> None:
    check_choice("by", by, _SCOPES)
    if scope is not None and scope not in _SCOPES[by]:
        other_rules = [f"by={rule!r}" for rule, scopes in _SCOPES.items() if scope in scopes]
        choices = " or ".join([*map(repr, _SCOPES[by]), *other_rules])
        raise ValueError(f"scope={scope!r} does not go with by={by!r}: choose {choices}")
    if not train_latent and by != "score":
        raise ValueError(f"train_latent=False with by={by!r} would train nothing: it goes with by='score'")
