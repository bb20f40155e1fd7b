"""HORQ (Li et al. 2017): the sign taken recursively, each time of the residual that the signs before it leave.

It is the reference that the Equal Bits paper cites as HWGQ; the half-wave quantizer of that name is in ``hwgq.py``.
"""

import torch
from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import InputQuantizer
from equalbits.nn.registry import register_input_quantizer


def horq(inputs: Tensor, order: int = 2) -> Tensor:
    """Return ``Σ bᵢ·sign(rᵢ)`` over ``order`` residuals: ``r₁ = x``, ``rᵢ₊₁ = rᵢ − bᵢ·sign(rᵢ)``, ``bᵢ = mean |rᵢ|``.

    The scales ``bᵢ`` are taken per image, the first axis. The gradient passes where ``|x| < 1``, as for the sign.

    >>> horq(torch.tensor([[-3.0, -1.0, 1.0, 3.0]]))
    tensor([[-3., -1.,  1.,  3.]])
    >>> horq(torch.tensor([[-3.0, -1.0, 1.0, 3.0]]), order=1)
    tensor([[-2., -2.,  2.,  2.]])
    """
    return F.clipped(inputs, horq_values(inputs.detach(), order))


def horq_values(inputs: Tensor, order: int = 2) -> Tensor:
    """Return the values of :func:`horq`, without gradient."""
    residual = inputs.to(F.at_least_float32(inputs.dtype))
    axes = tuple(range(1, inputs.ndim))
    values = torch.zeros_like(residual)
    for _ in range(order):
        term = residual.abs().mean(dim=axes, keepdim=True) * F.sign_symbols(residual)
        values, residual = values + term, residual - term
    return values.to(inputs.dtype)


@register_input_quantizer("horq")
class HORQ(InputQuantizer):
    """Sum of ``order`` scaled signs, each of the residual that those before it leave."""

    axis = -1

    def __init__(self, order: int = 2) -> None:
        super().__init__()
        if not isinstance(order, int) or isinstance(order, bool) or order < 1:
            raise ValueError(f"order={order!r}: the number of signs must be an integer of at least 1; 2 is usual")
        self.order = order

    def values(self, inputs: Tensor) -> Tensor:
        """Quantize by :func:`horq_values`."""
        return horq_values(self.batched(inputs), self.order).view(inputs.shape)

    def forward(self, inputs: Tensor) -> Tensor:
        """Quantize by :func:`horq`."""
        return horq(self.batched(inputs), self.order).view(inputs.shape)
