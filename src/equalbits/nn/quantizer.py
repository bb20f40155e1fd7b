"""Quantizers as modules: latents to symbols for weights, reals to signs for what flows into a layer.

A weight quantizer answers two questions: which symbol each latent takes (:meth:`WeightQuantizer.symbols`), and what
the layer then multiplies with and which gradient flows back (:meth:`WeightQuantizer.estimate`). A method of one's own
is a subclass that answers both.
"""

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from equalbits import functional as F
from equalbits.functional import bounded, centred_symbols, check_p_pos


class WeightQuantizer(nn.Module):
    """Latent weights in, scaled symbols out. The first axis of the latents is the filter.

    ``p_pos`` is the share of +1 it promises to every filter, None where it promises none.
    """

    p_pos: float | None = None

    def symbols(self, latents: Tensor) -> Tensor:
        """The symbol of each latent: −1, +1, or 0 where pruned. No gradient."""
        raise NotImplementedError

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """What the layer multiplies with, before its scale, joined to the latents by the method's gradient."""
        return F.straight_through(latents, symbols)

    def forward(self, latents: Tensor, symbols: Tensor | None = None) -> Tensor:
        """Quantize; ``symbols`` saves finding them where they are known already."""
        return self.estimate(latents, self.symbols(latents) if symbols is None else symbols)

    def fit_(self, latents: Tensor) -> None:
        """Make what the method remembers per latent or per filter. Called once, by the layer that takes it in."""

    def at_epoch_(self, latents: Tensor) -> None:
        """What the method does before each epoch, in place. It may wait for the device."""

    def after_step_(self, latents: Tensor) -> None:
        """What the method does after each step, to the latents in place. It must not wait: a graph may record it."""

    def penalty(self, latents: Tensor) -> Tensor:
        """What the method adds to the loss."""
        return latents.new_zeros(())

    def initial_scale(self, connections: int) -> float:
        """The layer's constant scale: ``√(2/D)`` keeps the variance of activations through a ReLU net near 1."""
        return math.sqrt(2 / connections)


class _Estimated(WeightQuantizer):
    """Passes the gradient on as ``estimator`` says: to every latent, or to those with ``|w| ≤ 1``."""

    estimator: str = "straight"

    def __init__(self, estimator: str = "straight") -> None:
        super().__init__()
        _check_choice("estimator", estimator, ("straight", "clipped"))
        self.estimator = estimator

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """The symbols, and the gradient unchanged or clipped."""
        return bounded(latents, symbols) if self.estimator == "clipped" else F.straight_through(latents, symbols)

    def extra_repr(self) -> str:
        """The estimator, where it is not the usual one."""
        return "" if self.estimator == "straight" else f"estimator={self.estimator!r}"


class Sign(_Estimated):
    """Each weight by its own sign, the paper's baseline; 0 counts as +1.

    ``estimator`` is ``"straight"`` (the gradient passes unchanged, the paper's) or ``"clipped"`` (where ``|w| ≤ 1``).

    >>> Sign()(torch.tensor([[-0.5, 0.0, 2.0]]))
    tensor([[-1.,  1.,  1.]])
    """

    def symbols(self, latents: Tensor) -> Tensor:
        """The sign of each latent."""
        return F.sign_symbols(latents)


class BiHalf(_Estimated):
    """Exactly the share ``p_pos`` of +1 in every filter, by optimal transport; one half is the paper's bi-half.

    ``estimator`` is ``"straight"`` (the gradient passes unchanged, the paper's) or ``"clipped"`` (where ``|w| ≤ 1``).

    >>> BiHalf()(torch.tensor([[0.1, 0.2, 0.3, 0.4]]))
    tensor([[-1., -1.,  1.,  1.]])
    >>> BiHalf(p_pos=0.25)
    BiHalf(p_pos=0.25)
    """

    p_pos: float

    def __init__(self, p_pos: float = 0.5, *, estimator: str = "straight") -> None:
        super().__init__(estimator)
        check_p_pos(p_pos)
        self.p_pos = p_pos

    def symbols(self, latents: Tensor) -> Tensor:
        """The top ``p_pos`` of each filter is +1 (Eq. 4)."""
        return F.transport_symbols(latents, self.p_pos)

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        return ", ".join(filter(None, (f"p_pos={self.p_pos}", super().extra_repr())))


class IRNet(WeightQuantizer):
    """IR-Net: centred and standardised per filter, then the sign, with a gradient that sharpens as training goes on.

    ``statistics`` says how the gradient treats each filter's mean and standard deviation:

    * ``"learned"``: it flows through them and the scale is ``2^s``, as published. Needs a batch norm behind.
    * ``"fixed"``: they are constants and the scale is ``√(2/D)``: the stable variant for nets without batch norm.
    * ``"through"``: it flows through them with scale ``√(2/D)``; strong at a tenth of the usual learning rate.
    * ``"identity"``: they are constants, and the gradient passes unchanged, as for sign and bi-half: what is left of
      IR-Net is the balance of its signs (the paper's Table 1b), without its estimator.

    Tell it how far training is with :func:`set_progress`.
    """

    progress: Tensor

    def __init__(self, statistics: str = "learned", *, t_min: float = 0.1, t_max: float = 10.0) -> None:
        super().__init__()
        _check_choice("statistics", statistics, ("learned", "fixed", "through", "identity"))
        check_sharpness(t_min, t_max)
        self.statistics, self.t_min, self.t_max = statistics, t_min, t_max
        self.register_buffer("progress", torch.zeros(()))

    def symbols(self, latents: Tensor) -> Tensor:
        """The sign of each latent after its filter's mean is taken off."""
        return centred_symbols(latents)

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """The published layer's value and gradient, or the variant asked for; it finds the signs as it goes."""
        return self.forward(latents)

    def forward(self, latents: Tensor, symbols: Tensor | None = None) -> Tensor:
        """Quantize. The signs come out of the normalisation, so nothing is found twice."""
        if self.statistics == "identity":
            return F.straight_through(latents, centred_symbols(latents) if symbols is None else symbols)
        sharpness = F.ede_sharpness(self.progress, self.t_min, self.t_max)
        if self.statistics == "learned":
            return F.irnet(latents, sharpness)
        return F.irnet_stable(latents, sharpness, through_statistics=self.statistics == "through")

    def initial_scale(self, connections: int) -> float:
        """1 where the method brings its own ``2^s``, else ``√(2/D)``."""
        return 1.0 if self.statistics == "learned" else super().initial_scale(connections)

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        return f"{self.statistics!r}, t_min={self.t_min}, t_max={self.t_max}"


class SignActivation(nn.Module):
    """The sign of what flows into a layer, 0 counting as +1.

    ``estimator`` is ``"clipped"`` (gradient inside ±1, the paper's), ``"polynomial"`` (Bi-Real's ApproxSign),
    ``"decaying"`` (IR-Net's EDE; tell it how far training is with :func:`set_progress`) or ``"straight"``.

    >>> SignActivation()(torch.tensor([-0.5, 0.0, 2.0]))
    tensor([-1.,  1.,  1.])
    """

    progress: Tensor

    def __init__(self, estimator: str = "clipped", *, t_min: float = 0.1, t_max: float = 10.0) -> None:
        super().__init__()
        _check_choice("estimator", estimator, (*_PLAIN_ESTIMATORS, "decaying"))
        check_sharpness(t_min, t_max)
        self.estimator, self.t_min, self.t_max = estimator, t_min, t_max
        if estimator == "decaying":
            self.register_buffer("progress", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        """±1 for each input."""
        symbols = F.sign_symbols(inputs)
        if self.estimator == "decaying":
            return F.decaying(inputs, symbols, F.ede_sharpness(self.progress, self.t_min, self.t_max))
        return _PLAIN_ESTIMATORS[self.estimator](inputs, symbols)

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        sharpness = f", t_min={self.t_min}, t_max={self.t_max}" if self.estimator == "decaying" else ""
        return f"{self.estimator!r}{sharpness}"


# A plain dictionary: the compiler of older torch looks into no other.
_PLAIN_ESTIMATORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "clipped": F.clipped,
    "polynomial": F.polynomial,
    "straight": F.straight_through,
}


def set_progress(model: nn.Module, progress: float) -> None:
    """Tell every quantizer that wants to know which share of training is done, from 0 to 1.

    One wants to know if it has a buffer named ``progress``. That may be of one's own, as a binary layer's quantizer.

    >>> layer = IRNet()
    >>> set_progress(layer, 0.25)
    >>> layer.progress
    tensor(0.2500)
    """
    if not 0 <= progress <= 1:
        raise ValueError(f"progress={progress} is not a share of training: it must lie in [0, 1]")
    for module in dict.fromkeys(_quantizers(model)):
        known = module._buffers.get("progress")
        if known is not None:
            known.fill_(progress)


def _quantizers(model: nn.Module) -> Iterator[nn.Module]:
    """Our own wherever they stand, and all parts of those that a layer holds; a model may know progress of its own."""
    for module in model.modules():
        if isinstance(module, WeightQuantizer | SignActivation):
            yield module
        for held in (module._modules.get("weight_quantizer"), module._modules.get("input_quantizer")):
            if held is not None:
                yield from held.modules()


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not known: choose one of {', '.join(map(repr, choices))}")


def check_sharpness(t_min: float, t_max: float) -> None:
    """Refuse the two ends of a slope's sharpness unless it can grow from the first to the second."""
    if not 0 < t_min <= t_max < math.inf:
        raise ValueError(f"t_min={t_min}, t_max={t_max}: the sharpness must grow from a value above 0 to a finite one")
