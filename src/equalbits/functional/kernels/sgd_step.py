"""Triton kernel of :func:`equalbits.functional.sgd_step_`: it reads and writes everything once."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: N803 (compile-time settings of a kernel are in capitals)

import torch
import triton
import triton.language as tl
from torch import Tensor

from equalbits.functional.kernels.sizes import cdiv
from equalbits.functional.sgd_step import SGDSettings

_BLOCK = 2048  # entries per program: four 16-byte loads of latents for each thread of 4 warps
_LAUNCH = {"num_warps": 4, "enable_fp_fusion": True}  # Triton 3.10 changes the default


def sgd_step_(latents: Tensor, velocity: Tensor | None, gradient: Tensor, scale: Tensor, settings: SGDSettings) -> None:
    """Compute :func:`equalbits.functional.sgd_step_` of dense tensors of the same strides."""
    form = {"MOMENTUM": settings.momentum, "DECAY": settings.weight_decay, "NESTEROV": settings.nesterov}
    with torch.cuda.device_of(latents):
        sgd_step[(cdiv(latents.numel(), _BLOCK),)](
            latents, velocity, gradient, scale, settings.lr, latents.numel(), **form, BLOCK=_BLOCK, **_LAUNCH
        )


@triton.jit
def sgd_step(
    latents, velocity, gradient, scale, lr, count,
    MOMENTUM: tl.constexpr, DECAY: tl.constexpr, NESTEROV: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update a block of latents and their velocity."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    w = tl.load(latents + place, mask=inside, other=0).to(tl.float64)
    g = tl.load(gradient + place, mask=inside, other=0).to(tl.float32) * tl.load(scale)
    if DECAY != 0:
        g = tl.fma(tl.full([BLOCK], DECAY, tl.float64), w, g.to(tl.float64)).to(tl.float32)
    if velocity is not None:
        momentum = tl.full([BLOCK], MOMENTUM, tl.float64)
        v = tl.load(velocity + place, mask=inside, other=0).to(tl.float64)
        v = tl.fma(momentum, v, g.to(tl.float64))
        tl.store(velocity + place, v.to(tl.float32), mask=inside)
        g = tl.fma(momentum, v, g.to(tl.float64)).to(tl.float32) if NESTEROV else v.to(tl.float32)
    rate = tl.load(lr).to(tl.float64)
    tl.store(latents + place, (w - rate * g.to(tl.float64)).to(tl.float32), mask=inside)
