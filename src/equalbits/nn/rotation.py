"""RBNN: filters turned towards their signs, the rotation refitted as training goes on."""

import math

import torch
from torch import Tensor, nn

from equalbits import functional as F
from equalbits.functional import at_least_float32
from equalbits.functional import rotation as turn
from equalbits.nn.binary_layer import BinaryLayer
from equalbits.nn.gains import fitted, times_gains
from equalbits.nn.quantizer import SignActivation, WeightQuantizer, check_sharpness
from equalbits.nn.registry import register_input_quantizer, register_quantizer


@register_quantizer("rbnn")
class RBNN(WeightQuantizer):
    """RBNN (Lin et al. 2020): the signs of each filter after a learned share of a rotation.

    Each standardised filter ``h`` moves to ``h + |sin β|(R1ᵀ h R2 − h)``; its signs, times a learned gain, are what
    the layer multiplies with. ``β`` and the gain are parameters, one for each filter. ``β`` starts uniform between 0
    and π/2, as the authors draw it: at π/2 itself nothing would learn, since the rotated part is a constant of the
    gradient and ``sin`` is flat there. The gain starts at the filter's mean ``|w|``. The rotation is shared by the
    layer; it starts random, is fitted once, and is refitted by :func:`refit_rotations_`, which the authors do at the
    first batch of every epoch. The slope is :func:`~equalbits.functional.rotation.triangle_slope`, its sharpness going
    from ``t_min`` to ``t_max``: tell it how far training is with :func:`~equalbits.nn.set_progress`.
    """

    progress: Tensor
    left: Tensor
    right: Tensor
    beta: nn.Parameter | None
    gains: nn.Parameter | None

    def __init__(self, *, t_min: float = 1e-2, t_max: float = 10.0) -> None:
        super().__init__()
        check_sharpness(t_min, t_max)
        self.t_min, self.t_max = t_min, t_max
        self.register_parameter("beta", None)
        self.register_parameter("gains", None)
        self.register_buffer("progress", torch.zeros(()))

    def fit_(self, latents: Tensor) -> None:
        """Start angles, gains and rotations, and fit the rotations once."""
        rows = F.as_filters(latents)
        self.beta = nn.Parameter(rows.new_empty(len(rows)).uniform_(0, math.pi / 2))
        self.gains = nn.Parameter(rows.abs().mean(dim=1))
        for name, size in zip(("left", "right"), turn.factor_pair(rows.shape[1]), strict=True):
            start = torch.empty(size, size, dtype=at_least_float32(rows.dtype), device=rows.device).normal_()
            self.register_buffer(name, torch.linalg.qr(start).Q.to(rows.dtype))
        self.refit_(latents)

    @torch.no_grad()
    def refit_(self, latents: Tensor) -> None:
        """Turn the rotations to the latents as they are now."""
        precise = at_least_float32(latents.dtype)  # torch finds no singular values in half precision
        start = turn.Rotation(self.left.to(precise), self.right.to(precise))
        rotation = turn.fit_rotation(turn.standardised(latents.to(precise)), start)
        self.left.copy_(rotation.left)
        self.right.copy_(rotation.right)

    def at_epoch_(self, latents: Tensor) -> None:
        """Refit, as the authors do at the first batch of every epoch."""
        self.refit_(latents)

    def rotation(self) -> turn.Rotation:
        """The two rotations of the layer."""
        return turn.Rotation(fitted(self._buffers.get("left")), fitted(self._buffers.get("right")))

    @torch.no_grad()
    def symbols(self, latents: Tensor) -> Tensor:
        """The sign of each turned latent."""
        turned = turn.turned(latents, self.rotation(), fitted(self.beta))
        return F.sign_symbols(turned).to(latents.dtype).view(latents.shape)

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """The gain times the signs; the gradient through the turn."""
        return self.forward(latents)

    def forward(self, latents: Tensor, symbols: Tensor | None = None) -> Tensor:
        """Quantize. The signs come out of the turn, so nothing is turned twice."""
        sharpness = F.ede_sharpness(self.progress, self.t_min, self.t_max)
        return times_gains(turn.rbnn(latents, self.rotation(), fitted(self.beta), sharpness), self.gains)

    def initial_scale(self, connections: int) -> float:
        """1: the method learns its own."""
        return 1.0

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        return f"t_min={self.t_min}, t_max={self.t_max}"


@register_input_quantizer("rbnn")
class RBNNActivation(SignActivation):
    """RBNN's sign of what flows into a layer: each sample standardised over all its values, then the sign.

    The slope is that of the weights with ``t`` at least 1, and so ``k = 1``; the gradient goes on through the
    standardisation. Tell it how far training is with :func:`~equalbits.nn.set_progress`.

    >>> RBNNActivation()(torch.tensor([[1.0, 2.0, 3.0, 6.0]]))
    tensor([[-1., -1.,  1.,  1.]])
    """

    axis: int = -1

    def __init__(self, *, t_min: float = 1e-2, t_max: float = 10.0) -> None:
        super().__init__("decaying", t_min=t_min, t_max=t_max)

    def fit_inputs_(self, channels: int, axis: int) -> None:
        """Note where a layer's channels lie: an input that begins with them is one sample without a batch."""
        self.axis = axis

    def forward(self, inputs: Tensor) -> Tensor:
        """±1 for each input; the sample is the first axis."""
        precise = at_least_float32(inputs.dtype)  # a mean rounded to half precision moves signs
        rows = turn.standardised((inputs[None] if inputs.dim() == -self.axis else inputs).to(precise))
        sharpness = F.ede_sharpness(self.progress, self.t_min, self.t_max).clamp(min=1.0)
        symbols = F.sign_symbols(rows).to(inputs.dtype)
        return F.weighted(rows, symbols, turn.triangle_slope(rows.detach(), sharpness)).view(inputs.shape)

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        return f"t_min={self.t_min}, t_max={self.t_max}"


def refit_rotations_(model: nn.Module) -> list[str]:
    """Refit the rotations of every layer with :class:`RBNN`; return the names of the layers. Once an epoch."""
    refitted = []
    for name, layer in model.named_modules():
        if isinstance(layer, BinaryLayer) and isinstance(layer.weight_quantizer, RBNN):
            layer.weight_quantizer.refit_(layer.latents())
            refitted.append(name)
    if not refitted:
        raise ValueError("no layer has the RBNN quantizer: there is no rotation to refit")
    return refitted
