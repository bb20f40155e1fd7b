"""IR-Net (Qin et al. 2020): signs of standardized filters, with a gradient that sharpens during training."""

from functools import partial

from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import SharpeningQuantizer, WeightQuantizer, check_choice
from equalbits.nn.registry import register_quantizer


def irnet(latents: Tensor, sharpness: Tensor) -> Tensor:
    """Libra parameter binarization with the EDE gradient, as published (Table 1b of the paper).

    Per filter, ``h = (w − mean) / std`` (sample std, N − 1), then ``2^s · sign(h)`` with ``s = round(log2(mean |h|))``.
    The gradient flows through the standardization; ``s`` is a constant. The layer needs a batch norm behind it;
    without one use :func:`irnet_stable`.
    """
    if F.as_filters(latents).shape[1] < 2:
        raise ValueError(
            f"latents have shape {tuple(latents.shape)}: IR-Net divides by each filter's standard deviation, which "
            f"needs at least 2 connections; leave this layer real or binarize it by sign"
        )
    rows = F.standardize(latents)
    shift = rows.detach().abs().mean(dim=1, keepdim=True).clamp(min=2.0**-20).log2().round()
    values = F.decaying(rows, F.sign_symbols(rows), sharpness) * shift.exp2()
    return values.to(latents.dtype).view(latents.shape)


def irnet_stable(latents: Tensor, sharpness: Tensor, *, through_statistics: bool = False) -> Tensor:
    """IR-Net for nets without batch norm: ``sign(w − mean)``, with the EDE slope and constant mean and std.

    The published form multiplies each latent's step by ``1/std(w)``, which makes a net without batch norm diverge at
    the paper's learning rate. ``through_statistics`` keeps that gradient, for a tenth of the learning rate.
    """
    rows = F.standardize(latents)
    symbols = F.sign_symbols(rows)
    if through_statistics:
        return F.decaying(rows, symbols, sharpness).to(latents.dtype).view(latents.shape)
    slope = F.ede_slope(rows.detach(), sharpness)
    return F.surrogate(F.as_filters(latents), symbols.to(latents.dtype), slope).view(latents.shape)


class IRNet(SharpeningQuantizer, WeightQuantizer):
    """IR-Net, with ``statistics`` selecting the gradient of each filter's mean and standard deviation.

    * ``"learned"``: the gradient flows through them and the scale is ``2^s``, as published. Needs a batch norm behind.
    * ``"fixed"``: they are constants and the scale is ``√(2/D)``, the stable variant for nets without batch norm.
    * ``"through"``: the gradient flows through them with scale ``√(2/D)``; works at a tenth of the learning rate.
    * ``"identity"``: they are constants and the gradient is unchanged, as for sign and bi-half. That isolates the
      balance of IR-Net's signs (the paper's Table 1b) from its estimator.
    """

    def __init__(self, statistics: str = "learned", *, t_min: float = 0.1, t_max: float = 10.0) -> None:
        super().__init__(t_min, t_max)
        check_choice("statistics", statistics, ("learned", "fixed", "through", "identity"))
        self.statistics = statistics
        self.has_own_scale = statistics == "learned"

    def symbols(self, latents: Tensor) -> Tensor:
        """Return the sign of each latent minus its filter's mean."""
        return F.centred_symbols(latents)

    def forward(self, latents: Tensor) -> Tensor:
        """Quantize by :func:`irnet`, or by the variant that ``statistics`` selects."""
        if self.statistics == "identity":
            return F.straight_through(latents, F.centred_symbols(latents))
        if self.statistics == "learned":
            return irnet(latents, self.sharpness())
        return irnet_stable(latents, self.sharpness(), through_statistics=self.statistics == "through")


register_quantizer("irnet")(partial(IRNet, "learned"))
register_quantizer("irnet-stable")(partial(IRNet, "fixed"))
register_quantizer("irnet-through")(partial(IRNet, "through"))
register_quantizer("irnet-identity")(partial(IRNet, "identity"))
