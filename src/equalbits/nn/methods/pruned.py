"""Pruned quantizers: symbols −1, 0 and +1 with an exact share of zeros. Multi-Prize Tickets are in ``mpt.py``.

``by`` names the pruning rule: rank in the filter, magnitude, or a learned score. The share of +1 among the kept weights
of every filter is exact under each rule: the mask comes first, then the ranking.
"""

import math

import torch
from torch import Tensor, nn

from equalbits import functional as F
from equalbits.nn.pruning_mask import PruningMask, apply_scale_correction
from equalbits.nn.quantizer import WeightQuantizer, check_choice
from equalbits.nn.quantizer_state import fitted
from equalbits.nn.registry import register_quantizer

_SCOPES = {"rank": ("filter",), "magnitude": ("layer", "filter", "global"), "score": ("layer", "filter", "global")}


@register_quantizer("pruned-bihalf")
class PrunedBiHalf(WeightQuantizer):
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
    ``√((1 − sparsity) / share kept)``, so that the scale fits the weights currently kept. ``released_counts`` uses the
    counts of the paper's released code, which are off balance by one at most sparsities; it then guarantees no share.
    A filter may become empty: see :func:`~equalbits.nn.empty_filters`.

    >>> PrunedBiHalf(1 / 3)(torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]]))
    tensor([[-1., -1.,  0.,  0.,  1.,  1.]])
    >>> PrunedBiHalf(1 / 3, by="magnitude")(torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]]))
    tensor([[ 0.,  0., -1., -1.,  1.,  1.]])
    """

    scores: nn.Parameter | None

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
        released_counts: bool = False,
    ) -> None:
        super().__init__()
        F.check_p_pos(p_pos)
        _check_rule(by, scope, train_latent)
        if released_counts and (by != "rank" or p_pos != 0.5 or ramp):
            raise ValueError("released_counts=True is the released code's rule: only by='rank', p_pos=0.5, ramp=0")
        self.by, self.scale_fan, self.train_latent, self.released_counts = by, scale_fan, train_latent, released_counts
        self.p_pos = None if released_counts else p_pos
        self.sieve = PruningMask(sparsity, scope or _SCOPES[by][0], ramp)  # the name is in the keys of checkpoints
        self.register_parameter("scores", None)
        self.register_buffer("progress", self.sieve.start_progress())

    def fit_(self, latents: Tensor) -> None:
        """Create the scores, and the mask of a global ranking."""
        self.sieve.fit_(latents)
        if self.by == "score":
            self.scores = start_scores(latents)

    def importance(self, latents: Tensor) -> Tensor:
        """Return the magnitude that the mask ranks: of the scores or of the weights."""
        return (latents if self.by == "magnitude" else fitted(self.scores)).detach().abs()

    def symbols(self, latents: Tensor) -> Tensor:
        """Return −1, 0 and +1 with exact counts."""
        progress = self._buffers["progress"]
        if self.p_pos is None:
            counts = F.released_counts(F.as_filters(latents).shape[1], self.sieve.sparsity)
            return F.keep_outer_ranks(latents, *counts)
        if self.by == "rank":
            return F.prune_middle_ranks(latents, self.sieve.sparsity_at(progress), self.p_pos)
        return F.transport_symbols(latents, self.p_pos, mask=self.sieve.mask(self.importance(latents), progress))

    def forward(self, latents: Tensor) -> Tensor:
        """Return the symbols, straight through to every latent; by score also ``g · w · sign(s)`` to the scores."""
        symbols = self.symbols(latents)
        correction = self.sieve.scale_correction(self._buffers["progress"], self.scale_fan)
        if self.by != "score":
            return apply_scale_correction(F.straight_through(latents, symbols), correction)
        scores = fitted(self.scores)
        # The gradient that arrives here includes the layer's scale; the rule excludes it.
        scale = self.initial_scale(F.as_filters(latents).shape[1]) * (1 if correction is None else correction)
        slope = latents.detach() * scores.detach().sign() / scale
        trained = latents if self.train_latent else latents.detach()
        return apply_scale_correction(F.edge_popup(trained, scores, symbols, slope.to(latents.dtype)), correction)

    def initial_scale(self, connections: int) -> float:
        """Return ``√(2/(D(1 − sparsity)))``, or ``√(2/D)`` without ``scale_fan``."""
        return self.sieve.initial_scale(connections, self.scale_fan)


@register_quantizer("pruned-sign")
class PrunedSign(WeightQuantizer):
    """Sign with a magnitude mask: 0 for the smallest ``|w|`` of the layer, the sign for the others; straight through.

    Probably the pruned baseline of the paper's figure: at sparsity 0 it is the dense binary net.

    >>> PrunedSign(0.5)(torch.tensor([[-0.1, 0.9], [-0.8, 0.2]]))
    tensor([[ 0.,  1.],
            [-1.,  0.]])
    """

    def __init__(
        self, sparsity: float = 0.5, *, scope: str = "layer", scale_fan: bool = True, ramp: float = 0.0
    ) -> None:
        super().__init__()
        self.sieve, self.scale_fan = PruningMask(sparsity, scope, ramp), scale_fan
        self.register_buffer("progress", self.sieve.start_progress())

    def fit_(self, latents: Tensor) -> None:
        """Create the mask of a global ranking."""
        self.sieve.fit_(latents)

    def importance(self, latents: Tensor) -> Tensor:
        """Return the magnitude that the mask ranks."""
        return latents.detach().abs()

    def symbols(self, latents: Tensor) -> Tensor:
        """Return the sign of each kept latent, 0 elsewhere."""
        mask = self.sieve.mask(self.importance(latents), self._buffers["progress"])
        return F.sign_symbols(latents).masked_fill(~mask, 0.0)

    def forward(self, latents: Tensor) -> Tensor:
        """Return the symbols, straight through to every latent."""
        values = F.straight_through(latents, self.symbols(latents))
        return apply_scale_correction(values, self.sieve.scale_correction(self._buffers["progress"], self.scale_fan))

    def initial_scale(self, connections: int) -> float:
        """Return ``√(2/(D(1 − sparsity)))``, or ``√(2/D)`` without ``scale_fan``."""
        return self.sieve.initial_scale(connections, self.scale_fan)


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
