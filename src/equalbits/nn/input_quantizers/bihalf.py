"""Bi-half for inputs (Li and van Gemert 2021): an exact share of +1 in each channel, over the batch."""

import math
from typing import Any

import torch
from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import InputQuantizer, sign_values
from equalbits.nn.registry import register_input_quantizer


def bihalf_inputs(inputs: Tensor, *, p_pos: float = 0.5, pull: float = 6.0) -> Tensor:
    """Return :func:`batch_symbols`, with the gradient ``g + pull · (x − b)/n`` for ``n`` inputs.

    That is straight through, plus a pull of each input towards its own bit. The authors' code gives the extra element
    of an odd batch to −1; here, as everywhere, it is +1.
    """
    symbols = batch_symbols(inputs, p_pos)
    return _Pulled.apply(inputs, symbols, pull)  # type: ignore[no-any-return, no-untyped-call]


def batch_symbols(inputs: Tensor, p_pos: float = 0.5) -> Tensor:
    """Return ±1 with exactly the share ``p_pos`` of +1 in each channel, over batch and positions; no gradient.

    The channel is the second axis. Rounding and ties follow :func:`~equalbits.functional.transport_symbols`.
    """
    if inputs.dim() < 2:
        raise ValueError(f"inputs have shape {tuple(inputs.shape)}: they must be (batch, channel, …)")
    channels = inputs.detach().movedim(1, 0)  # (channel, batch, …)
    return F.transport_symbols(channels.contiguous(), p_pos).movedim(0, 1)


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


@register_input_quantizer("bihalf")
class BiHalfActivation(InputQuantizer):
    """In training the share ``p_pos`` of +1 in each channel over the batch; in eval the sign of each input.

    In eval there may be no batch to rank. The sign is what the authors' code uses: by then the ``pull`` of
    :func:`bihalf_inputs` has moved the threshold near 0.

    >>> BiHalfActivation()(torch.tensor([[0.1], [0.2], [0.3], [0.4]])).flatten()
    tensor([-1., -1.,  1.,  1.])
    """

    def __init__(self, p_pos: float = 0.5, *, pull: float = 6.0) -> None:
        super().__init__()
        F.check_p_pos(p_pos)
        if not F.is_number(pull) or not math.isfinite(pull):
            raise ValueError(f"pull={pull!r} is not a strength: it must be a finite number; 6 is usual, 0 disables it")
        self.p_pos, self.pull = p_pos, pull

    def values(self, inputs: Tensor) -> Tensor:
        """Return the sign of each input, without gradient."""
        return sign_values(inputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ±1 for each input; the channel is the second axis unless the layer set another."""
        if self.training:
            channel_second = inputs.movedim(self.axis, 1) if inputs.dim() > 1 else inputs
            return bihalf_inputs(channel_second, p_pos=self.p_pos, pull=self.pull).movedim(1, self.axis)
        return F.sign(inputs)
