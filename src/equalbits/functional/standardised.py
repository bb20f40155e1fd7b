"""Signs of latents moved, stretched or cut first: AdaBin, ReCU, BNN+."""

import math

import torch
from torch import Tensor

from equalbits.functional.binarize import sign_symbols
from equalbits.functional.estimators import decaying, straight_through, weighted
from equalbits.functional.optimal_transport import as_filters
from equalbits.functional.precision import at_least_float32


def centred_symbols(latents: Tensor) -> Tensor:
    """The sign of each latent after its filter's mean is taken off.

    >>> centred_symbols(torch.tensor([[1.0, 2.0, 6.0]]))
    tensor([[-1., -1.,  1.]])
    """
    rows = as_filters(latents.detach()).to(at_least_float32(latents.dtype))  # a rounded mean would move signs
    return sign_symbols(rows - rows.mean(dim=1, keepdim=True)).to(latents.dtype).view(latents.shape)


def adabin(latents: Tensor, sharpness: Tensor) -> Tensor:
    """AdaBin (Tu et al. 2022): two values of each filter's own, ``mean ± rms(w − mean)``.

    ``a · sign((w − b)/a) + b`` with ``b`` the filter's mean and ``a`` the root mean square around it. The sign has the
    EDE slope, and the gradient flows through ``a`` and ``b``, as in the authors' code.

    >>> adabin(torch.tensor([[1.0, 3.0, 1.0, 3.0]]), torch.tensor(1.0))
    tensor([[1., 3., 1., 3.]])
    """
    rows = as_filters(latents).to(at_least_float32(latents.dtype))  # float16 cannot hold small squares
    middle = rows.mean(dim=1, keepdim=True)
    distance = (rows - middle).square().mean(dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny).sqrt()
    balanced = (rows - middle) / distance
    symbols = centred_symbols(rows)
    return (distance * decaying(balanced, symbols, sharpness) + middle).to(latents.dtype).view(latents.shape)


def recu(latents: Tensor, tau: Tensor) -> Tensor:
    """ReCU (Xu et al. 2021): standardise each filter, clamp the tails at a quantile, take the sign.

    ``h = 2√2 (w − mean)/√(var + 1e-5)``, then ``h`` cut to ``±Q`` with ``Q = −mean|h| · ln(2 − 2·tau)``, the quantile
    ``tau`` of a Laplace distribution with the layer's mean ``|h|``. The sign is the same with and without the clamp;
    what it changes is the gradient, which flows straight through the sign, not at all beyond ``±Q``, and through the
    standardisation. The paper clamps at empirical quantiles ``tau`` and ``1 − tau``; this is the closed form its code
    uses, and the order is the code's.
    """
    rows = as_filters(latents)
    centred = rows - rows.mean(dim=1, keepdim=True)
    variance = centred.var(dim=1, keepdim=True, correction=min(1, rows.shape[1] - 1))
    balanced = centred * (2 * math.sqrt(2)) / (variance + 1e-5).sqrt()
    bound = -balanced.detach().abs().mean() * (2 - 2 * tau).log()
    return straight_through(balanced.clamp(-bound, bound), centred_symbols(rows)).view(latents.shape)


def recu_tau(progress: Tensor, tau_min: float = 0.85, tau_max: float = 0.99) -> Tensor:
    """ReCU's quantile when the share ``progress`` of training is done: from ``tau_min`` to ``tau_max`` as ``e^p`` does.

    >>> [round(float(recu_tau(torch.tensor(p))), 4) for p in (0.0, 0.5, 1.0)]
    [0.85, 0.9029, 0.99]
    """
    return tau_min + (tau_max - tau_min) * progress.expm1() / (math.e - 1)


def swish_sign(reals: Tensor, symbols: Tensor, beta: float = 5.0) -> Tensor:
    """BNN+'s estimator (Darabi et al. 2018): the slope of ``SS(x) = 2σ(βx)(1 + βx(1 − σ(βx))) − 1``.

    ``β(2 − βx·tanh(βx/2)) / (1 + cosh(βx))``, written with σ so that it cannot overflow. It is negative beyond about
    ``2.4/β``, then fades.

    >>> inputs = torch.tensor([0.0, 10.0], requires_grad=True)
    >>> swish_sign(inputs, torch.ones(2)).sum().backward()
    >>> inputs.grad
    tensor([5., -0.])
    """
    scaled = beta * reals.detach()
    share = scaled.sigmoid()
    return weighted(reals, symbols, 2 * beta * share * (1 - share) * (2 + scaled * (1 - 2 * share)))


def check_steepness(beta: float) -> None:
    """Refuse a steepness of :func:`swish_sign` that is not above 0 and finite."""
    if not 0 < beta < math.inf:
        raise ValueError(f"beta={beta} gives no slope: it must be above 0 and finite; 5 is usual")


def distance_to_scale(latents: Tensor, scale: Tensor, *, power: int = 1) -> Tensor:
    """BNN+'s regulariser: ``Σ |a − |w||`` (power 1) or ``Σ (a − |w|)²`` (power 2), pulling each weight towards ±a.

    ``scale`` holds one ``a`` for each filter, or one for all. Both the latents and the scale get its gradient. The sum
    is taken in float32 at least.

    >>> distance_to_scale(torch.tensor([[0.5, -2.0]]), torch.tensor([1.0]), power=2)
    tensor(1.2500)
    """
    if power not in (1, 2):
        raise ValueError(f"power={power} is not known: choose 1 (absolute distance) or 2 (squared)")
    gap = scale.reshape(-1, 1) - as_filters(latents).to(at_least_float32(latents.dtype)).abs()
    return gap.abs().sum() if power == 1 else gap.square().sum()
