"""RBNN (Lin et al. 2020): rotate each filter towards its signs before taking them.

A rotation of all ``D`` weights of a filter would take ``D²`` numbers. A filter written as an ``a × b`` matrix ``X``
with ``a · b = D`` is rotated by two small matrices: ``R1ᵀ X R2``. All filters of a layer share them. The input
quantizer is in ``nn/input_quantizers/rbnn.py``.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from equalbits import functional as F
from equalbits.nn.quantizer import GainQuantizer, SharpeningQuantizer, fitted
from equalbits.nn.registry import register_quantizer


class Rotation(NamedTuple):
    """Two orthogonal matrices, ``a × a`` and ``b × b``."""

    left: Tensor
    right: Tensor


def rbnn(latents: Tensor, rotation: Rotation, beta: Tensor, sharpness: Tensor) -> Tensor:
    """Return the signs of the rotated filters, with the slope :func:`~equalbits.functional.triangle_slope`.

    The gradient flows on through the rotation to ``β`` and through the standardization to the latents.
    """
    rows = rotate_partly(latents, rotation, beta)
    values = F.surrogate(rows, F.sign_symbols(rows), F.triangle_slope(rows.detach(), sharpness))
    return values.to(latents.dtype).view(latents.shape)


def rotate_partly(latents: Tensor, rotation: Rotation, beta: Tensor) -> Tensor:
    """Move the standardized filters by the share ``|sin β|`` towards their rotation, as (filter, connection).

    ``β`` is one learned angle per filter. The rotated filter is a constant, as in the authors' code.
    """
    rows = F.standardize(latents)
    return rows + beta.sin().abs()[:, None] * (rotate(rows.detach(), rotation) - rows)


def rotate(rows: Tensor, rotation: Rotation) -> Tensor:
    """Return ``R1ᵀ X R2`` for each row, read as an ``a × b`` matrix; in float32 at least, under autocast too."""
    wide = F.at_least_float32(rows.dtype)
    left, right = rotation.left.to(wide), rotation.right.to(wide)
    with F.autocast_disabled(rows.device):
        rotated = left.T @ rows.to(wide).reshape(-1, len(left), len(right)) @ right
    return rotated.reshape(rows.shape).to(rows.dtype)


def fit_rotation(rows: Tensor, rotation: Rotation, *, rounds: int = 3) -> Rotation:
    """Rotate the rows closer to their own signs, in ``rounds`` of three steps: the signs, ``R1``, ``R2``.

    With ``B = sign(R1ᵀ X R2)`` fixed, the best ``R1`` solves an orthogonal Procrustes problem: ``V Uᵀ`` of
    ``Σ B R2ᵀ Xᵀ = U S Vᵀ``; likewise ``R2`` is ``U Vᵀ`` of ``Σ Xᵀ R1 B``. No round increases ``Σ |B − R1ᵀ X R2|²``.
    """
    left, right = rotation
    matrices = rows.detach().reshape(-1, left.shape[0], right.shape[0])
    with F.autocast_disabled(rows.device):
        for _ in range(rounds):
            signs = F.sign_symbols(left.T @ matrices @ right)
            u, _, vt = torch.linalg.svd((signs @ right.T @ matrices.transpose(1, 2)).sum(dim=0))
            left = vt.T @ u.T
            u, _, vt = torch.linalg.svd((matrices.transpose(1, 2) @ left @ signs).sum(dim=0))
            right = u @ vt
    return Rotation(left, right)


def factor_pair(connections: int) -> tuple[int, int]:
    """Return the two factors of ``connections`` nearest to its square root, the smaller first.

    >>> factor_pair(576), factor_pair(27), factor_pair(7)
    ((24, 24), (3, 9), (1, 7))
    """
    smaller = next(a for a in range(math.isqrt(connections), 0, -1) if connections % a == 0)
    return smaller, connections // smaller


@register_quantizer("rbnn")
class RBNN(SharpeningQuantizer, GainQuantizer):
    """Signs of rotated filters times a learned gain per filter.

    Each standardized filter ``h`` moves to ``h + |sin β|(R1ᵀ h R2 − h)``. ``β`` and the gain are parameters, one per
    filter. ``β`` starts uniform between 0 and π/2, as the authors' code drew it until May 2020. Their current code
    starts every ``β`` at π/2, where ``sin`` is flat, so that it hardly moves. The gain starts at the filter's mean
    ``|w|``. The rotation is shared by the layer. It starts random and is fitted to the latents at the start and before
    every epoch (:func:`~equalbits.nn.at_epoch_`). ``t_min`` and ``t_max`` bound the sharpness of the slope.
    """

    left: Tensor
    right: Tensor

    def __init__(self, *, t_min: float = 1e-2, t_max: float = 10.0) -> None:
        super().__init__(t_min, t_max)

    def fit_(self, latents: Tensor) -> None:
        """Create angles, gains and rotations, and fit the rotations once."""
        rows = F.as_filters(latents)
        self.beta = nn.Parameter(rows.new_empty(len(rows)).uniform_(0, math.pi / 2))
        super().fit_(latents)
        for name, size in zip(("left", "right"), factor_pair(rows.shape[1]), strict=True):
            start = torch.empty(size, size, dtype=F.at_least_float32(rows.dtype), device=rows.device).normal_()
            self.register_buffer(name, torch.linalg.qr(start).Q.to(rows.dtype))
        self.at_epoch_(latents)

    @torch.no_grad()
    def at_epoch_(self, latents: Tensor) -> None:
        """Fit the rotations to the latents."""
        wide = F.at_least_float32(latents.dtype)  # torch has no SVD in half precision
        start = Rotation(self.left.to(wide), self.right.to(wide))
        rotation = fit_rotation(F.standardize(latents.to(wide)), start)
        self.left.copy_(rotation.left)
        self.right.copy_(rotation.right)

    def rotation(self) -> Rotation:
        """Return the two rotations of the layer."""
        return Rotation(fitted(self, "left"), fitted(self, "right"))

    @torch.no_grad()
    def symbols(self, latents: Tensor) -> Tensor:
        """Return the sign of each rotated latent."""
        rotated = rotate_partly(latents, self.rotation(), fitted(self, "beta"))
        return F.sign_symbols(rotated).to(latents.dtype).view(latents.shape)

    def forward(self, latents: Tensor) -> Tensor:
        """Quantize by :func:`rbnn`, times the gains."""
        return self.scale_filters(rbnn(latents, self.rotation(), fitted(self, "beta"), self.sharpness()))
