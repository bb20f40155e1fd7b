"""ABC-Net (Lin et al. 2017): each filter as a weighted sum of several binary bases."""

from typing import NamedTuple

import torch
from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import WeightQuantizer
from equalbits.nn.registry import register_quantizer


class Bases(NamedTuple):
    """Binary bases of each filter, shape (filter, connection, base), and their weights, shape (filter, base)."""

    symbols: Tensor
    weights: Tensor


def abcnet_bases(latents: Tensor, bases: int = 1) -> Bases:
    """Return the bases ``sign(w − mean + u · std)`` for ``u`` evenly spaced in ±1, weighted by least squares.

    A single base has ``u = 0``. Mean, population standard deviation and weights are taken per filter, the paper's
    channel-wise form. Equal bases share their weight.

    >>> abcnet_bases(torch.tensor([[-3.0, -1.0, 1.0, 3.0]]), 2).weights
    tensor([[1.5000, 1.5000]])
    """
    rows = F.as_filters(latents.detach())
    shifts = torch.linspace(-1, 1, bases, dtype=rows.dtype, device=rows.device) if bases > 1 else rows.new_zeros(1)
    centred, deviation = rows - rows.mean(dim=1, keepdim=True), rows.std(dim=1, keepdim=True, correction=0)
    symbols = F.sign_symbols(centred[..., None] + shifts * deviation[..., None])  # (filter, connection, base)
    projected = (symbols * rows[..., None]).mean(dim=1)
    if bases == 1:
        return Bases(symbols, projected)
    wide = symbols.to(F.at_least_float32(rows.dtype))
    with F.autocast_disabled(rows.device):
        gram = wide.transpose(1, 2) @ wide / rows.shape[1]
        weights = torch.linalg.pinv(gram, hermitian=True) @ projected[..., None].to(gram.dtype)
    return Bases(symbols, weights[..., 0].to(rows.dtype))


def abcnet(latents: Tensor, bases: int = 1) -> Tensor:
    """Return ``Σ a_m B_m`` of :func:`abcnet_bases`; the gradient is ``(Σ a_m) · g``, straight through each base."""
    found = abcnet_bases(latents, bases)
    values = (found.symbols * found.weights[:, None]).sum(dim=2)
    slope = found.weights.sum(dim=1, keepdim=True)
    return F.surrogate(F.as_filters(latents), values, slope.expand_as(values)).view(latents.shape)


@register_quantizer("abc-net")
class ABCNet(WeightQuantizer):
    """Each filter as a sum of ``bases`` binary filters.

    With more than one base a weight has no single symbol. ``symbols`` then returns the base with the largest weight in
    each filter: entropy and flips describe that base alone, and packing stores one bit per weight and base.
    """

    has_own_scale = True

    def __init__(self, bases: int = 1) -> None:
        super().__init__()
        if not isinstance(bases, int) or bases < 1:
            raise ValueError(f"bases={bases!r}: the number of bases must be an integer of at least 1")
        self.bases = bases

    def symbols(self, latents: Tensor) -> Tensor:
        """Return the base with the largest weight in each filter."""
        found = abcnet_bases(latents, self.bases)
        largest = found.weights.abs().argmax(dim=1)  # (filter,)
        index = largest[:, None, None].expand(*found.symbols.shape[:2], 1)
        return found.symbols.gather(2, index)[..., 0].view(latents.shape)

    def forward(self, latents: Tensor) -> Tensor:
        """Quantize by :func:`abcnet`."""
        return abcnet(latents, self.bases)
