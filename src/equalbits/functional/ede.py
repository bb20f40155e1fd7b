"""EDE, the estimator of IR-Net (Qin et al. 2020): a slope that sharpens during training, and its schedule."""

from torch import Tensor

from equalbits.functional.estimators import surrogate


def decaying(reals: Tensor, symbols: Tensor, sharpness: Tensor) -> Tensor:
    """Multiply the gradient by EDE's slope ``k·t·(1 − tanh²(t·x))`` with ``k = max(1/t, 1)``.

    The slope is near 1 everywhere while the sharpness ``t`` is small, and approaches that of the sign function as ``t``
    grows. :func:`ede_sharpness` is the schedule of ``t``.

    >>> import torch
    >>> inputs = torch.tensor([0.0, 1.0], requires_grad=True)
    >>> decaying(inputs, torch.tensor([1.0, 1.0]), torch.tensor(10.0)).sum().backward()
    >>> inputs.grad.round(decimals=4)
    tensor([10.,  0.])
    """
    return surrogate(reals, symbols, ede_slope(reals.detach(), sharpness))


def ede_slope(reals: Tensor, sharpness: Tensor) -> Tensor:
    """Return the slope of :func:`decaying` at ``reals``."""
    return (sharpness * reals).tanh().square().neg().add(1) * sharpness.clamp(min=1.0)  # k·t = max(1, t)


def ede_sharpness(progress: Tensor, t_min: float = 0.1, t_max: float = 10.0) -> Tensor:
    """EDE schedule: ``t`` at a share ``progress`` of training, from ``t_min`` to ``t_max``, linear in its logarithm.

    >>> import torch
    >>> [round(float(ede_sharpness(torch.tensor(p))), 3) for p in (0.0, 0.5, 1.0)]
    [0.1, 1.0, 10.0]
    """
    return t_min * (t_max / t_min) ** progress
