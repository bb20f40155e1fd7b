"""The paper's comparison, part one: methods that read their scale off the latents and remember nothing.

Each is a class around a function of its own, where formula and gradient are written. All promise no share of +1.
"""

import torch
from torch import Tensor, nn

from equalbits import functional as F
from equalbits.functional import scaled
from equalbits.nn.binary_layer import BinaryLayer
from equalbits.nn.parametrized import assign_latents_
from equalbits.nn.quantizer import WeightQuantizer
from equalbits.nn.registry import register_quantizer


@register_quantizer("bnn")
@register_quantizer("binaryconnect")
class BinaryConnect(WeightQuantizer):
    """BinaryConnect: the sign, gradient inside ``|w| ≤ 1``; see :func:`~equalbits.functional.scaled.binaryconnect`.

    ``stochastic`` draws +1 with probability ``(w + 1)/2`` in training, and takes the sign in eval; it wants latents
    that fill ±1, since near 0 every draw is a coin. BNN's weights are the deterministic ones. The scale is the layer's
    ``√(2/D)``. After each step the latents are clipped to ±1, as the method does; in a loop of one's own call
    :func:`~equalbits.nn.after_step_`.

    >>> BinaryConnect()(torch.tensor([[-0.5, 0.0, 2.0]]))
    tensor([[-1.,  1.,  1.]])
    """

    def __init__(self, *, stochastic: bool = False) -> None:
        super().__init__()
        self.stochastic = stochastic

    def symbols(self, latents: Tensor) -> Tensor:
        """The sign of each latent. A draw belongs to the pass that makes it: who looks on should not draw another."""
        return F.sign_symbols(latents)

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """The symbols; backward the gradient where ``|w| ≤ 1``."""
        return scaled.bounded(latents, symbols)

    def forward(self, latents: Tensor, symbols: Tensor | None = None) -> Tensor:
        """Quantize, by a draw where asked."""
        drawn = self.stochastic and self.training
        return super().forward(latents, scaled.stochastic_symbols(latents) if drawn else symbols)

    def after_step_(self, latents: Tensor) -> None:
        """Clip to ±1: further out no gradient would bring a latent back."""
        latents.clamp_(-1.0, 1.0)

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        return f"stochastic={self.stochastic}"


@register_quantizer("xnor")
class XNOR(WeightQuantizer):
    """XNOR-Net: each filter's signs times its mean ``|w|``, both differentiated.

    See :func:`~equalbits.functional.scaled.xnor`. ``centre`` first takes off the mean over the input channels, for
    each kernel position.

    >>> XNOR()(torch.tensor([[0.5, -1.5], [0.0, 2.0]]))
    tensor([[ 1., -1.],
            [ 1.,  1.]])
    """

    def __init__(self, *, centre: bool = False) -> None:
        super().__init__()
        self.centre = centre

    def symbols(self, latents: Tensor) -> Tensor:
        """The sign of each latent, centred where asked."""
        return F.sign_symbols(scaled.centred_over_inputs(latents) if self.centre else latents)

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """Signs times the filter's mean ``|w|``, both in the graph."""
        return scaled.xnor(latents, centre=self.centre)

    def initial_scale(self, connections: int) -> float:
        """1: the method brings its own."""
        return 1.0

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        return f"centre={self.centre}"


@register_quantizer("dorefa")
class DoReFa(WeightQuantizer):
    """DoReFa-Net in one bit: signs times the layer's mean ``|w|``; see :func:`~equalbits.functional.scaled.dorefa`."""

    def symbols(self, latents: Tensor) -> Tensor:
        """The sign of each latent."""
        return F.sign_symbols(latents)

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """Signs times the layer's mean ``|w|``; the gradient unchanged."""
        return scaled.dorefa(latents)

    def initial_scale(self, connections: int) -> float:
        """1: the method brings its own."""
        return 1.0


@register_quantizer("reactnet")
@register_quantizer("bi-real")
class BiReal(WeightQuantizer):
    """Bi-Real Net, and ReActNet's weights: signs times a constant mean ``|w|``, the gradient free of it.

    See :func:`~equalbits.functional.scaled.bireal`. The authors start their latents at ``rand · 0.001``, all positive,
    so that every first bit is +1; a layer here starts them as torch does, around 0.
    """

    def symbols(self, latents: Tensor) -> Tensor:
        """The sign of each latent."""
        return F.sign_symbols(latents)

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """Signs times the filter's mean ``|w|``; the gradient where ``|w| ≤ 1``."""
        return scaled.bireal(latents)

    def initial_scale(self, connections: int) -> float:
        """1: the method brings its own."""
        return 1.0


@register_quantizer("least-squares")
class LeastSquares(WeightQuantizer):
    """Least squares in one bit: XNOR-Net's values, the scale held fixed in the gradient.

    See :func:`~equalbits.functional.scaled.least_squares`.
    """

    def symbols(self, latents: Tensor) -> Tensor:
        """The sign of each latent."""
        return F.sign_symbols(latents)

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """Signs times the filter's mean ``|w|``; the gradient times it, where ``|w| ≤ 1``."""
        return scaled.least_squares(latents)

    def initial_scale(self, connections: int) -> float:
        """1: the method brings its own."""
        return 1.0


@register_quantizer("abc-net")
class ABCNet(WeightQuantizer):
    """ABC-Net: each filter as a sum of ``bases`` binary ones; see :func:`~equalbits.functional.scaled.abcnet_bases`.

    With more than one base a weight has no single symbol. ``symbols`` then gives the base that weighs most in each
    filter, so entropy and flips are those of that base alone, and such a layer does not pack into one bit a weight.
    """

    def __init__(self, bases: int = 1) -> None:
        super().__init__()
        scaled.check_bases(bases)
        self.bases = bases

    def symbols(self, latents: Tensor) -> Tensor:
        """The base of each filter that weighs most."""
        found = scaled.abcnet_bases(latents, self.bases)
        heaviest = found.weights.abs().argmax(dim=1)  # (filter,)
        chosen = heaviest[:, None, None].expand(*found.symbols.shape[:2], 1)
        return found.symbols.gather(2, chosen)[..., 0].view(latents.shape)

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """The weighed sum of all bases; straight through each."""
        return self.forward(latents)

    def forward(self, latents: Tensor, symbols: Tensor | None = None) -> Tensor:
        """Quantize. All bases are needed, so the heaviest is not looked for."""
        return scaled.abcnet(latents, self.bases)

    def initial_scale(self, connections: int) -> float:
        """1: the method brings its own."""
        return 1.0

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        return f"{self.bases}"


def clip_latents_(model: nn.Module, *, bound: float = 1.0) -> Tensor:
    """Clip the latents of every binary layer to ``±bound``, as BinaryConnect and XNOR-Net do after each step.

    Returns how many latents lay outside, as a tensor, so that no GPU is waited for. As a watcher:
    ``lambda model, step: clip_latents_(model)``.
    """
    if not bound > 0:
        raise ValueError(f"bound={bound} leaves latents no room: it must be above 0; 1 is usual")
    layers = [layer for layer in model.modules() if isinstance(layer, BinaryLayer)]
    if not layers:
        raise ValueError("the model has no binary layer to clip: make some with binarize_(model, BinaryConnect())")
    outside = torch.stack([(layer.weight.detach().abs() > bound).sum() for layer in layers]).sum()
    with torch.no_grad():
        for layer in layers:
            assign_latents_(layer, layer.weight.detach().clamp_(-bound, bound))
    return outside
