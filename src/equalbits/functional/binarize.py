"""Latent weights to symbols: sign and bi-half.

The forward value is ±1 exactly; the backward is the estimator named.
"""

import torch
from torch import Tensor

from equalbits.functional.estimators import clipped, straight_through
from equalbits.functional.execution_mode import is_plain
from equalbits.functional.optimal_transport import transport_symbols


def sign(latents: Tensor, *, estimator: str = "straight") -> Tensor:
    """Return the sign of each weight, the paper's baseline (its Table 1a).

    ``estimator`` is ``"straight"`` (gradient unchanged, as in the paper) or ``"clipped"`` (only where ``|w| ≤ 1``).

    >>> sign(torch.tensor([-0.3, 0.0, 0.1]))
    tensor([-1.,  1.,  1.])
    """
    return estimate(latents, sign_symbols(latents), estimator)


def bihalf(latents: Tensor, p_pos: float = 0.5, *, mask: Tensor | None = None, estimator: str = "straight") -> Tensor:
    """Return the paper's bi-half symbols: +1 for the top ``p_pos`` of each filter (Eq. 4), −1 for the rest.

    ``estimator`` is that of :func:`sign`. The gradient reaches masked latents too, so a pruned weight can return.

    >>> bihalf(torch.tensor([[0.1, 0.2, 0.3, 0.4]]))
    tensor([[-1., -1.,  1.,  1.]])
    """
    return estimate(latents, transport_symbols(latents, p_pos, mask=mask), estimator)


def sign_symbols(reals: Tensor) -> Tensor:
    """Return +1 where a value is at least 0, else −1; never 0, and without gradient.

    >>> sign_symbols(torch.tensor([-2.0, 0.0, 3.0]))
    tensor([-1.,  1.,  1.])
    """
    if reals.device.type == "cpu" and is_plain(reals):  # torch.where takes five times as long there
        return (reals.detach() >= 0).to(reals.dtype).mul_(2).sub_(1)
    one = torch.ones((), dtype=reals.dtype, device=reals.device)
    return torch.where(reals.detach() >= 0, one, -one)


def estimate(latents: Tensor, symbols: Tensor, estimator: str) -> Tensor:
    """Return symbols of weights with the gradient of an estimator, that of :func:`sign`."""
    if estimator == "clipped":
        return clipped(latents, symbols, inclusive=True)
    return straight_through(latents, symbols)
