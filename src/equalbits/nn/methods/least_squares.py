"""Least squares in one bit (Pouransari et al. 2020): the signs and scale nearest to each filter in squared error."""

from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import SignQuantizer
from equalbits.nn.registry import register_quantizer


def least_squares(latents: Tensor) -> Tensor:
    """Return each filter's signs times its mean ``|w|``, the solution of the least-squares problem in one bit.

    The authors' code treats the scale as a constant: ``dw = A · g · [|w| ≤ 1]``, the first term of XNOR-Net's gradient.
    """
    rows = F.as_filters(latents)
    scale = rows.detach().abs().mean(dim=1, keepdim=True)
    return (scale * F.clipped(rows, F.sign_symbols(rows), inclusive=True)).view(latents.shape)


@register_quantizer("least-squares")
class LeastSquares(SignQuantizer):
    """XNOR-Net's values, with the scale constant in the gradient."""

    has_own_scale = True

    def forward(self, latents: Tensor) -> Tensor:
        """Quantize by :func:`least_squares`."""
        return least_squares(latents)
