"""Filters with zero mean, and with unit standard deviation: IR-Net, ReCU, RBNN and AdaBin binarize those."""

import torch
from torch import Tensor

from equalbits.functional.binarize import sign_symbols
from equalbits.functional.optimal_transport import as_filters
from equalbits.functional.precision import at_least_float32


def centred_symbols(latents: Tensor) -> Tensor:
    """Return the sign of each latent minus its filter's mean, without gradient.

    >>> centred_symbols(torch.tensor([[1.0, 2.0, 6.0]]))
    tensor([[-1., -1.,  1.]])
    """
    rows = as_filters(latents.detach()).to(at_least_float32(latents.dtype))  # a mean in half precision changes signs
    return sign_symbols(rows - rows.mean(dim=1, keepdim=True)).to(latents.dtype).view(latents.shape)


def standardize(latents: Tensor) -> Tensor:
    """Return each filter with mean 0 and sample standard deviation 1 (N − 1), as (filter, connection).

    A standard deviation below the rounding error counts as zero: such filters are only centred, since dividing would
    amplify noise and gradient. Half precision is widened to float32: float16 overflows on the squares of wide layers.
    """
    rows = as_filters(latents)
    wide = rows.to(at_least_float32(rows.dtype))
    centred = wide - wide.mean(dim=1, keepdim=True)
    deviation = centred.std(dim=1, keepdim=True, correction=min(1, rows.shape[1] - 1))
    rounding = torch.finfo(rows.dtype).eps * wide.detach().abs().amax(dim=1, keepdim=True)
    return centred / torch.where(deviation > rounding, deviation, 1.0)
