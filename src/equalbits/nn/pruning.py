"""Pruned quantizers: symbols −1, 0 and +1, with an exact share of zeros.

What decides which weights stay is named by ``by``: their rank in the filter, their magnitude, or a learned score. The
share of +1 is exact among the kept weights of every filter, whatever the rule: the mask comes first, then the ranking.
"""

import math

import torch
from torch import Tensor, nn

from equalbits import functional as F
from equalbits.functional import check_p_pos, halfmask_symbols, mpt_values, outer_symbols, released_counts, scored
from equalbits.nn.gains import fitted
from equalbits.nn.pruning_mask import PruningMask, apply_scale_correction
from equalbits.nn.quantizer import WeightQuantizer
from equalbits.nn.registry import register_quantizer

_SCOPES = {"rank": ("filter",), "magnitude": ("layer", "filter", "global"), "score": ("layer", "filter", "global")}


@register_quantizer("pruned-bihalf")
class PrunedBiHalf(WeightQuantizer):
    """Bi-half with the share ``sparsity`` of zeros, and exactly ``p_pos`` of +1 among the kept weights of each filter.

    ``by`` names the rule, ``scope`` over what it counts:

    * ``"rank"``: zero the middle ranks of each filter (the paper's released code); the scope is the filter.
    * ``"magnitude"``: zero the smallest ``|w|`` of the layer, of each filter, or of the net; then Eq. 4 on the rest.
    * ``"score"``: zero the smallest ``|s|`` of learned scores (the paper's text, after Multi-Prize Tickets). The
      scores start uniform in ``±1/√D``, and their gradient is ``g · w · sign(s)`` for the gradient ``g`` of what the
      layer multiplies with.

    Latents get the gradient unchanged, pruned ones too, so that a weight may return; ``train_latent=False`` (by score)
    leaves them as they started. ``scale_fan`` makes the scale ``√(2/(D(1 − sparsity)))``, which a net without batch
    norm needs. With ``ramp`` the sparsity rises from one half over that share of training, as
    :func:`~equalbits.nn.set_progress` tells it. A ranking over the net is :func:`~equalbits.nn.set_global_masks_`'s to
    make; until it does, every weight stays. With a ramp, and in a global ranking, the symbols are also multiplied by
    ``√((1 − sparsity) / share kept)``, so that the scale fits the weights a layer has now. ``released_counts`` takes
    the released code's counts, off balance by one at most rates; it then promises no share. A filter may be left
    empty: see :func:`~equalbits.nn.empty_filters`.

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
        check_p_pos(p_pos)
        _check_rule(by, scope, train_latent)
        if released_counts and (by != "rank" or p_pos != 0.5 or ramp):
            raise ValueError("released_counts=True is the released code's rule: only by='rank', p_pos=0.5, ramp=0")
        self.by, self.scale_fan, self.train_latent, self.released_counts = by, scale_fan, train_latent, released_counts
        self.p_pos = None if released_counts else p_pos
        self.sieve = PruningMask(sparsity, scope or _SCOPES[by][0], ramp)
        self.register_parameter("scores", None)
        self.register_buffer("progress", self.sieve.start_progress())

    def fit_(self, latents: Tensor) -> None:
        """Start the scores, and the mask of a global ranking."""
        self.sieve.fit_(latents)
        if self.by == "score":
            self.scores = _start_scores(latents)

    def importance(self, latents: Tensor) -> Tensor:
        """What the mask ranks: the score's or the weight's magnitude."""
        return (latents if self.by == "magnitude" else fitted(self.scores)).detach().abs()

    def symbols(self, latents: Tensor) -> Tensor:
        """−1, 0 and +1, with exact counts."""
        progress = self._buffers["progress"]
        if self.p_pos is None:
            return outer_symbols(latents, *released_counts(F.as_filters(latents).shape[1], self.sieve.sparsity))
        if self.by == "rank":
            return halfmask_symbols(latents, self.sieve.sparsity_at(progress), self.p_pos)
        return F.transport_symbols(latents, self.p_pos, mask=self.sieve.mask(self.importance(latents), progress))

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """Straight through to every latent; by score also ``g · w · sign(s)`` to the scores."""
        correction = self.sieve.scale_correction(self._buffers["progress"], self.scale_fan)
        if self.by != "score":
            return apply_scale_correction(F.straight_through(latents, symbols), correction)
        scores = fitted(self.scores)
        # What arrives here is the gradient times the layer's scale: the rule wants it without.
        scale = self.initial_scale(F.as_filters(latents).shape[1]) * (1 if correction is None else correction)
        slope = latents.detach() * scores.detach().sign() / scale
        learning = latents if self.train_latent else latents.detach()
        return apply_scale_correction(scored(learning, scores, symbols, slope.to(latents.dtype)), correction)

    def initial_scale(self, connections: int) -> float:
        """``√(2/(D(1 − sparsity)))``, or ``√(2/D)`` without ``scale_fan``."""
        return self.sieve.initial_scale(connections, self.scale_fan)

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        settings = ("by", "scale_fan", "train_latent", "released_counts")
        return f"p_pos={self.p_pos}, " + ", ".join(f"{name}={getattr(self, name)!r}" for name in settings)


@register_quantizer("pruned-sign")
class PrunedSign(WeightQuantizer):
    """Sign with a magnitude mask: the smallest ``|w|`` of the layer are 0, the others their sign; straight through.

    Very likely the pruned baseline of the paper's figure: at sparsity 0 it is the full binary net.

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
        """Make the mask of a global ranking."""
        self.sieve.fit_(latents)

    def importance(self, latents: Tensor) -> Tensor:
        """What the mask ranks: the weight's magnitude."""
        return latents.detach().abs()

    def symbols(self, latents: Tensor) -> Tensor:
        """The sign of each kept latent, 0 elsewhere."""
        mask = self.sieve.mask(self.importance(latents), self._buffers["progress"])
        return F.sign_symbols(latents).masked_fill(~mask, 0.0)

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """Straight through to every latent."""
        correction = self.sieve.scale_correction(self._buffers["progress"], self.scale_fan)
        return apply_scale_correction(F.straight_through(latents, symbols), correction)

    def initial_scale(self, connections: int) -> float:
        """``√(2/(D(1 − sparsity)))``, or ``√(2/D)`` without ``scale_fan``."""
        return self.sieve.initial_scale(connections, self.scale_fan)

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        return f"scale_fan={self.scale_fan}"


@register_quantizer("mpt")
class MPT(WeightQuantizer):
    """Multi-Prize Tickets (Diffenderfer and Kailkhura 2021): frozen signs, learned scores decide which of them stay.

    ``a · sign(w)`` where the score's magnitude is among the largest of the layer, else 0, with ``a`` the mean ``|w|``
    of the kept weights. Only the scores learn, by ``g · w · sign(s)`` (edge-popup); the latents get no gradient. Start
    the layer with ``init="kaiming"``, as the method does. With ``scale_fan`` all is as if the latents had started for
    the connections that stay, ``√(2/(D(1 − sparsity)))``, as in the authors' settings for nets without batch norm:
    else each layer there is quieter than the one before, and a deep net at a high sparsity learns nothing. A batch norm
    takes it away, from what the net answers and from what its scores learn.

    >>> [float(MPT(0.75, scale_fan=on).initial_scale(64)) for on in (False, True)]
    [1.0, 2.0]
    """

    scores: nn.Parameter | None
    train_latent = False

    def __init__(
        self, sparsity: float = 0.5, *, scope: str = "layer", scale_fan: bool = True, ramp: float = 0.0
    ) -> None:
        super().__init__()
        self.sieve, self.scale_fan = PruningMask(sparsity, scope, ramp), scale_fan
        self.register_parameter("scores", None)
        self.register_buffer("progress", self.sieve.start_progress())

    def fit_(self, latents: Tensor) -> None:
        """Start the scores, and the mask of a global ranking."""
        self.sieve.fit_(latents)
        self.scores = _start_scores(latents)

    def importance(self, latents: Tensor) -> Tensor:
        """What the mask ranks: the score's magnitude."""
        return fitted(self.scores).detach().abs()

    def symbols(self, latents: Tensor) -> Tensor:
        """The sign of each kept latent, 0 elsewhere."""
        mask = self.sieve.mask(self.importance(latents), self._buffers["progress"])
        return F.sign_symbols(latents).masked_fill(~mask, 0.0)

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """``a · symbols``; the gradient goes to the scores alone."""
        fixed, scores = latents.detach(), fitted(self.scores)
        values = scored(fixed, scores, mpt_values(fixed, symbols != 0), fixed * scores.detach().sign())
        return apply_scale_correction(values, self.sieve.scale_correction(self._buffers["progress"], self.scale_fan))

    def initial_scale(self, connections: int) -> float:
        """1, since the method brings its own ``a``; ``1/√(1 − sparsity)`` with ``scale_fan``."""
        return 1 / math.sqrt(1 - self.sieve.sparsity) if self.scale_fan else 1.0

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        return f"scale_fan={self.scale_fan}"


def _start_scores(latents: Tensor) -> nn.Parameter:
    bound = 1 / math.sqrt(F.as_filters(latents).shape[1])
    return nn.Parameter(torch.empty_like(latents).uniform_(-bound, bound))


def _check_rule(by: str, scope: str | None, train_latent: bool) -> None:
    if not isinstance(by, str) or by not in _SCOPES:
        raise ValueError(f"by={by!r} is not known: choose one of {', '.join(map(repr, _SCOPES))}")
    if scope is not None and scope not in _SCOPES[by]:
        others = [f"by={rule!r}" for rule, scopes in _SCOPES.items() if scope in scopes]
        ways = " or ".join([*map(repr, _SCOPES[by]), *others])
        raise ValueError(f"scope={scope!r} does not go with by={by!r}: choose {ways}")
    if not train_latent and by != "score":
        raise ValueError(f"train_latent=False with by={by!r} would train nothing: it goes with by='score'")
