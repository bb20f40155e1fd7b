"""What flows into a layer, in few values: bi-half over the batch, and the half-wave quantizer."""

import math
from typing import Any

import torch
from torch import Tensor

from equalbits.functional.estimators import weighted
from equalbits.functional.optimal_transport import transport_symbols

#: HWGQ's values above 0, by the number of bits: least squared error for a standard normal input (Cai et al. 2017).
#: One bit has the mean of the positive half; for two bits the values are evenly spaced, as the authors chose them.
HALFWAVE_LEVELS = {1: (math.sqrt(2 / math.pi),), 2: (0.538, 1.076, 1.614)}


def batch_symbols(inputs: Tensor, p_pos: float = 0.5) -> Tensor:
    """±1 with exactly the share ``p_pos`` of +1 in each channel, over the batch and all positions; no gradient.

    The channel is the second axis. Rounding and ties are those of
    :func:`~equalbits.functional.transport_symbols`.

    >>> batch_symbols(torch.tensor([[0.1, 5.0], [0.2, 3.0], [0.3, 4.0], [0.4, 6.0]]))
    tensor([[-1.,  1.],
            [-1., -1.],
            [ 1., -1.],
            [ 1.,  1.]])
    """
    if inputs.dim() < 2:
        raise ValueError(f"inputs have shape {tuple(inputs.shape)}: they must be (batch, channel, …)")
    channels = inputs.detach().movedim(1, 0)  # (channel, batch, …)
    return transport_symbols(channels.contiguous(), p_pos).movedim(0, 1)


def bihalf_inputs(inputs: Tensor, *, p_pos: float = 0.5, pull: float = 6.0) -> Tensor:
    """The authors' bi-half layer for activations (Li and van Gemert 2021): half of each channel +1 over the batch.

    Backward ``g + pull · (x − b)/n`` with ``n`` the number of inputs: straight through, plus a pull of each input
    towards its own bit. Their code gives the odd one of a batch to −1; here, as everywhere, it is +1.

    >>> inputs = torch.tensor([[0.5], [-3.0]], requires_grad=True)
    >>> bihalf_inputs(inputs, pull=2.0).sum().backward()
    >>> inputs.grad
    tensor([[ 0.5000],
            [-1.0000]])
    """
    symbols = batch_symbols(inputs, p_pos)
    return _Pulled.apply(inputs, symbols, pull)  # type: ignore[no-any-return, no-untyped-call]


class _Pulled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, symbols: Tensor, pull: float) -> Tensor:
        return symbols.view_as(symbols)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])
        ctx.pull = inputs[2] / inputs[0].numel()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        inputs, symbols = ctx.saved_tensors
        return gradient + ctx.pull * (inputs - symbols), None, None


def halfwave(inputs: Tensor, bits: int = 1) -> Tensor:
    """HWGQ (Cai et al. 2017): 0 for what is not positive, else the nearest of a few positive values.

    One bit knows 0 and 0.798, two bits 0, 0.538, 1.076 and 1.614; every positive input gets a positive value. Made for
    inputs of unit variance, so it stands behind a batch norm. Backward is the clipped ReLU: the gradient where
    ``0 < x ≤`` the largest value.

    >>> halfwave(torch.tensor([-1.0, 0.1, 0.9, 9.0]), bits=2)
    tensor([0.0000, 0.5380, 1.0760, 1.6140])
    """
    if bits not in HALFWAVE_LEVELS:
        raise ValueError(f"bits={bits} is not known: the half-wave quantizer has 1 or 2")
    levels = HALFWAVE_LEVELS[bits]
    reals = inputs.detach()
    values = torch.zeros_like(reals)
    for below, level in zip((0.0, *levels), levels, strict=False):
        edge = (below + level) / 2 if below else 0.0
        values = torch.where(reals > edge, level, values)
    return weighted(inputs, values, (reals > 0) & (reals <= levels[-1]))
