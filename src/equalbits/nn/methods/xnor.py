"""XNOR-Net (Rastegari et al. 2016): signs times the mean magnitude of each filter, both differentiated."""

from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import WeightQuantizer
from equalbits.nn.registry import register_quantizer


def xnor(latents: Tensor, *, centre: bool = False) -> Tensor:
    """Return each filter's signs times its mean ``|w|``.

    The scale is part of the graph: ``dw = A · g · [|w| ≤ 1] + sign(w) · mean(sign(w) · g)``, the mean over the filter.
    The authors' code also multiplies by ``n(1 − 1/C)``, a choice of learning rate that is left out here. ``centre``
    first subtracts the mean over the input channels; the authors' code does so in place before each step, here it is
    part of the graph.
    """
    rows = F.as_filters(centred_over_inputs(latents) if centre else latents)
    symbols = F.sign_symbols(rows)
    scale = (rows * symbols).mean(dim=1, keepdim=True)  # the mean |w|, with slope sign(w) at 0 too
    return (scale * F.clipped(rows, symbols, inclusive=True)).view(latents.shape)


def centred_over_inputs(latents: Tensor) -> Tensor:
    """Return the latents minus their mean over the second axis, the input channel."""
    if latents.dim() < 2 or latents.shape[1] < 2:
        raise ValueError(
            f"latents have shape {tuple(latents.shape)}: centring needs at least two input channels, else all become "
            f"0; leave depthwise layers out or pass centre=False"
        )
    return latents - latents.mean(dim=1, keepdim=True)


@register_quantizer("xnor")
class XNOR(WeightQuantizer):
    """Signs times the mean ``|w|`` of each filter; ``centre`` first subtracts the mean over the input channels."""

    has_own_scale = True

    def __init__(self, *, centre: bool = False) -> None:
        super().__init__()
        self.centre = centre

    def symbols(self, latents: Tensor) -> Tensor:
        """Return the sign of each latent, after centring if ``centre``."""
        return F.sign_symbols(centred_over_inputs(latents) if self.centre else latents)

    def forward(self, latents: Tensor) -> Tensor:
        """Quantize by :func:`xnor`."""
        return xnor(latents, centre=self.centre)
