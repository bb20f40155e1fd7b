"""RBNN: turn each filter towards the corners of the cube before taking its signs (Lin et al. 2020).

A rotation of all ``D`` weights of a filter would take ``D²`` numbers. Written as an ``a × b`` matrix with ``a · b = D``
a filter ``X`` is turned by two small ones: ``R1ᵀ X R2``. All filters of a layer share them.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from equalbits.functional.binarize import sign_symbols, standardised_rows
from equalbits.functional.estimators import weighted
from equalbits.functional.optimal_transport import as_filters
from equalbits.functional.precision import at_least_float32, outside_autocast


class Rotation(NamedTuple):
    """Two orthogonal matrices, ``a × a`` and ``b × b``."""

    left: Tensor
    right: Tensor


def factor_pair(connections: int) -> tuple[int, int]:
    """The two factors of ``connections`` nearest to its square root, the smaller first.

    >>> factor_pair(576), factor_pair(27), factor_pair(7)
    ((24, 24), (3, 9), (1, 7))
    """
    smaller = next(a for a in range(math.isqrt(connections), 0, -1) if connections % a == 0)
    return smaller, connections // smaller


def standardised(latents: Tensor) -> Tensor:
    """Each filter with mean 0 and standard deviation 1 (the sample's, N − 1), as (filter, connection).

    IR-Net's rule: equal weights have no spread and are only centred. In float32 at least.
    """
    return standardised_rows(as_filters(latents))


def rotate(rows: Tensor, rotation: Rotation) -> Tensor:
    """``R1ᵀ X R2`` for each row, read as an ``a × b`` matrix; in float32 at least, under autocast too."""
    precise = at_least_float32(rows.dtype)
    left, right = rotation.left.to(precise), rotation.right.to(precise)
    with outside_autocast(rows.device):
        turned = left.T @ rows.to(precise).reshape(-1, len(left), len(right)) @ right
    return turned.reshape(rows.shape).to(rows.dtype)


def fit_rotation(rows: Tensor, rotation: Rotation, *, rounds: int = 3) -> Rotation:
    """Turn the rows closer to their own signs, in ``rounds`` of three steps: the signs, ``R1``, ``R2``.

    With ``B = sign(R1ᵀ X R2)`` fixed, the best ``R1`` solves an orthogonal Procrustes problem: ``V Uᵀ`` of
    ``Σ B R2ᵀ Xᵀ = U S Vᵀ``; likewise ``R2`` is ``U Vᵀ`` of ``Σ Xᵀ R1 B``. No round makes ``Σ |B − R1ᵀ X R2|²`` larger.
    """
    left, right = rotation
    matrices = rows.detach().reshape(-1, left.shape[0], right.shape[0])
    with outside_autocast(rows.device):
        for _ in range(rounds):
            signs = sign_symbols(left.T @ matrices @ right)
            u, _, vt = torch.linalg.svd((signs @ right.T @ matrices.transpose(1, 2)).sum(dim=0))
            left = vt.T @ u.T
            u, _, vt = torch.linalg.svd((matrices.transpose(1, 2) @ left @ signs).sum(dim=0))
            right = u @ vt
    return Rotation(left, right)


def turned(latents: Tensor, rotation: Rotation, beta: Tensor) -> Tensor:
    """The standardised filters, moved by the share ``|sin β|`` towards their rotation, as (filter, connection).

    ``β`` is one learned angle for each filter. The rotated filter itself is a constant, as in the authors' code.
    """
    rows = standardised(latents)
    return rows + beta.sin().abs()[:, None] * (rotate(rows.detach(), rotation) - rows)


def rbnn(latents: Tensor, rotation: Rotation, beta: Tensor, sharpness: Tensor) -> Tensor:
    """The signs of the turned filters; backward RBNN's triangle: ``k · max(0, √2·t − t²·|x|)``, ``k = max(1/t, 1)``.

    The gradient goes on through the turn to ``β`` and, through the standardisation, to the latents.
    """
    rows = turned(latents, rotation, beta)
    values = weighted(rows, sign_symbols(rows), triangle_slope(rows.detach(), sharpness))
    return values.to(latents.dtype).view(latents.shape)


def triangle_slope(reals: Tensor, sharpness: Tensor) -> Tensor:
    """``k · max(0, √2·t − t²·|x|)`` with ``k = max(1/t, 1)``: a triangle that narrows as ``t`` grows.

    >>> triangle_slope(torch.tensor([0.0, 1.0, 2.0]), torch.tensor(1.0))
    tensor([1.4142, 0.4142, 0.0000])
    """
    height = (1 / sharpness).clamp(min=1.0)
    return height * (math.sqrt(2) * sharpness - sharpness.square() * reals.abs()).clamp(min=0)
