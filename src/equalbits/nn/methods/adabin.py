"""AdaBin (Tu et al. 2022): two values per filter: ``mean ± rms``. Inputs: ``nn/input_quantizers/adabin.py``."""

import torch
from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import SharpeningQuantizer, WeightQuantizer
from equalbits.nn.registry import register_quantizer


def adabin(latents: Tensor, sharpness: Tensor) -> Tensor:
    """Return ``a · sign((w − b)/a) + b`` with ``b`` the filter's mean and ``a`` the root mean square around it.

    The sign has the EDE slope, and the gradient flows through ``a`` and ``b``, as in the authors' code.

    >>> adabin(torch.tensor([[1.0, 3.0, 1.0, 3.0]]), torch.tensor(1.0))
    tensor([[1., 3., 1., 3.]])
    """
    rows = F.as_filters(latents).to(F.at_least_float32(latents.dtype))  # float16 underflows on small squares
    mean = rows.mean(dim=1, keepdim=True)
    rms = (rows - mean).square().mean(dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny).sqrt()
    signs = F.decaying((rows - mean) / rms, F.centred_symbols(rows), sharpness)
    return (rms * signs + mean).to(latents.dtype).view(latents.shape)


@register_quantizer("adabin")
class AdaBin(SharpeningQuantizer, WeightQuantizer):
    """Two values per filter, ``mean ± rms``.

    The layer multiplies with ``a · symbol + b``, which is not a multiple of the symbol. ``t_min`` and ``t_max`` bound
    the sharpness of the EDE slope.
    """

    has_own_scale = True

    def __init__(self, *, t_min: float = 1e-3, t_max: float = 10.0) -> None:
        super().__init__(t_min, t_max)

    def symbols(self, latents: Tensor) -> Tensor:
        """Return the sign of each latent minus its filter's mean."""
        return F.centred_symbols(latents)

    def forward(self, latents: Tensor) -> Tensor:
        """Quantize by :func:`adabin`."""
        return adabin(latents, self.sharpness())
