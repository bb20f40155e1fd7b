"""A step of SGD for latents, from the gradient of their scaled symbols."""

from importlib import import_module
from typing import NamedTuple

import torch
from torch import Tensor

from equalbits.functional.precision import at_least_float32


class SGDSettings(NamedTuple):
    """Settings of SGD; the learning rate is a tensor on the device of the latents."""

    lr: Tensor
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False


@torch.no_grad()
def sgd_step_(latents: Tensor, velocity: Tensor | None, gradient: Tensor, scale: Tensor, settings: SGDSettings) -> None:
    """Update latents, and the ``velocity`` that momentum needs, in place as torch's SGD does up to rounding.

    ``gradient`` is that of the latents' symbols times ``scale``, in any dtype; the latents' is it times the scale. On a
    GPU one kernel reads everything once.

    >>> latents, scale = torch.tensor([1.0, -1.0]), torch.tensor(0.5)
    >>> sgd_step_(latents, None, torch.tensor([2.0, 0.0]), scale, SGDSettings(torch.tensor(0.1)))
    >>> latents
    tensor([ 0.9000, -1.0000])
    """
    if gradient.stride() != latents.stride():
        gradient = torch.empty_like(latents, dtype=gradient.dtype).copy_(gradient)
    if latents.device.type == "cuda" and _fits_kernel(latents, velocity):
        try:
            kernels = import_module("equalbits.functional.kernels.sgd_step")
        except ImportError:  # without Triton
            kernels = None
        if kernels is not None:
            kernels.sgd_step_(latents, velocity, gradient, scale, settings)
            return
    reference_step_(latents, velocity, gradient, scale, settings)


def reference_step_(
    latents: Tensor, velocity: Tensor | None, gradient: Tensor, scale: Tensor, settings: SGDSettings
) -> None:
    """Compute :func:`sgd_step_` in float64, rounded after each line."""
    lr, momentum, weight_decay, nesterov = settings
    dtype, lr = latents.dtype, lr.double()
    g = gradient.to(at_least_float32(gradient.dtype)) * scale
    if weight_decay:
        g = (g.double() + weight_decay * latents.double()).to(dtype)
    if velocity is not None:
        wide = momentum * velocity.double() + g.double()
        velocity.copy_(wide)
        g = (g.double() + momentum * wide if nesterov else wide).to(dtype)
    latents.copy_(latents.double() - lr * g.double())


def _fits_kernel(latents: Tensor, velocity: Tensor | None) -> bool:
    alike = velocity is None or (velocity.dtype == latents.dtype and velocity.stride() == latents.stride())
    dense = latents.is_contiguous() or (latents.dim() == 4 and latents.is_contiguous(memory_format=torch.channels_last))
    return latents.dtype == torch.float32 and alike and dense
