"""Latent weights to symbols, a function per method: forward ±1 to the last bit, backward the method's estimator."""

import torch
from torch import Tensor

from equalbits.functional.estimators import decaying, ede_slope, straight_through, weighted
from equalbits.functional.optimal_transport import as_filters, transport_symbols
from equalbits.functional.precision import at_least_float32


def sign_symbols(reals: Tensor) -> Tensor:
    """+1 where the real is at least 0, else −1; never 0, and without gradient.

    >>> sign_symbols(torch.tensor([-2.0, 0.0, 3.0]))
    tensor([-1.,  1.,  1.])
    """
    one = torch.ones((), dtype=reals.dtype, device=reals.device)
    return torch.where(reals.detach() >= 0, one, -one)


def sign(latents: Tensor) -> Tensor:
    """The paper's baseline: each weight by its own sign, straight-through gradient (its Table 1a).

    >>> sign(torch.tensor([-0.3, 0.0, 0.1]))
    tensor([-1.,  1.,  1.])
    """
    return straight_through(latents, sign_symbols(latents))


def bihalf(latents: Tensor, p_pos: float = 0.5, *, mask: Tensor | None = None) -> Tensor:
    """The paper's method: the top ``p_pos`` of each filter is +1 (Eq. 4), straight-through gradient.

    The gradient reaches every latent, masked ones too, so that a pruned weight may return.

    >>> bihalf(torch.tensor([[0.1, 0.2, 0.3, 0.4]]))
    tensor([[-1., -1.,  1.,  1.]])
    """
    return straight_through(latents, transport_symbols(latents, p_pos, mask=mask))


def irnet(latents: Tensor, sharpness: Tensor) -> Tensor:
    """IR-Net (Qin et al. 2020): Libra parameter binarization with the EDE gradient (its Table 1b).

    Per filter, ``h = (w − mean) / std`` (the sample's std, N − 1), then ``2^s · sign(h)`` with
    ``s = round(log2(mean |h|))``. The gradient passes through the normalisation, as in the published layer; ``s`` is
    a constant. It needs a batch norm behind it: see :func:`irnet_stable` where there is none.
    """
    rows = as_filters(latents)  # (filter, connection)
    if rows.shape[1] < 2:
        raise ValueError(
            f"latents have shape {tuple(latents.shape)}: IR-Net divides by each filter's standard deviation, which "
            f"takes 2 connections or more; leave this layer real or binarize it by sign"
        )
    balanced = standardised_rows(rows)
    shift = balanced.detach().abs().mean(dim=1, keepdim=True).clamp(min=2.0**-20).log2().round()
    values = decaying(balanced, sign_symbols(balanced), sharpness) * shift.exp2()
    return values.to(latents.dtype).view(latents.shape)


def irnet_stable(latents: Tensor, sharpness: Tensor, *, through_statistics: bool = False) -> Tensor:
    """IR-Net for nets without batch norm: ``sign(w − mean)``, and the EDE slope with mean and std held fixed.

    The published form multiplies each latent's step by ``1/std(w)``, which collapses a net without batch norm at the
    paper's learning rate. ``through_statistics`` keeps that gradient all the same, for a tenth of the learning rate.
    """
    rows = as_filters(latents)
    balanced = standardised_rows(rows)
    symbols = sign_symbols(balanced)
    if through_statistics:
        return decaying(balanced, symbols, sharpness).to(latents.dtype).view(latents.shape)
    slope = ede_slope(balanced.detach(), sharpness)
    return weighted(rows, symbols.to(latents.dtype), slope).view(latents.shape)


def standardised_rows(rows: Tensor) -> Tensor:
    """Each row less its mean, over the sample's standard deviation; equal weights have none and are only centred.

    A spread below the rounding error counts as none: to divide by it would blow noise, and the gradient, up. Halves
    come back in float32: float16 cannot hold the squares of a wide layer's weights, and a rounded mean moves signs.
    """
    wide = rows.to(at_least_float32(rows.dtype))
    centred = wide - wide.mean(dim=1, keepdim=True)
    spread = centred.std(dim=1, keepdim=True, correction=min(1, rows.shape[1] - 1))
    noise = torch.finfo(rows.dtype).eps * wide.detach().abs().amax(dim=1, keepdim=True)
    return centred / torch.where(spread > noise, spread, 1.0)
