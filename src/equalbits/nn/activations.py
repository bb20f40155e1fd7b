"""Quantizers for what flows into a layer, besides :class:`~equalbits.nn.SignActivation`."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from equalbits import functional as F
from equalbits.functional import activations, check_p_pos, check_steepness, is_number, swish_sign
from equalbits.nn.registry import register_input_quantizer


@register_input_quantizer("rsign")
class RSign(nn.Module):
    """ReActNet's sign with a learned shift for each channel (Liu et al. 2020): ``sign(x + b)``, ApproxSign gradient.

    The shifts start at 0 and get the same gradient as the inputs, summed over batch and positions. Without ``channels``
    the layer that takes it in makes them, one for each of its own; alone, the first input does. A channel is an entry
    of ``axis``, the second unless the layer says otherwise: a linear layer's is the last.

    >>> RSign(2)(torch.tensor([[-0.5, 0.5]])).tolist()
    [[-1.0, 1.0]]
    """

    shift: nn.Parameter | UninitializedParameter
    axis: int = 1

    def __init__(self, channels: int | None = None) -> None:
        super().__init__()
        self.shift = UninitializedParameter() if channels is None else nn.Parameter(torch.zeros(channels))

    def fit_(self, channels: int) -> None:
        """Make the shifts, all 0, where there are none yet."""
        if isinstance(self.shift, UninitializedParameter):
            with torch.inference_mode(False):  # what is made there never learns
                self.shift.materialize((channels,))
                nn.init.zeros_(self.shift)

    def fit_inputs_(self, channels: int, axis: int) -> None:
        """Make the shifts of a layer's input, along its axis of channels."""
        if not isinstance(self.shift, UninitializedParameter) and len(self.shift) not in (1, channels):
            raise ValueError(
                f"RSign(channels={len(self.shift)}) stands before a layer of {channels} input channels: leave channels "
                "away, and every layer makes as many shifts as it needs"
            )
        self.axis = axis
        self.fit_(channels)

    def reset_parameters(self) -> None:
        """Put the shifts back to 0."""
        if not isinstance(self.shift, UninitializedParameter):
            nn.init.zeros_(self.shift)

    def forward(self, inputs: Tensor) -> Tensor:
        """±1 for each input."""
        self.fit_(inputs.shape[self.axis])
        shifted = inputs + per_channel(self.shift, inputs, self.axis)
        return F.polynomial(shifted, F.sign_symbols(shifted))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if prefix + "shift" in state_dict:
            self.fit_(len(state_dict[prefix + "shift"]))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        return "" if isinstance(self.shift, UninitializedParameter) else f"{len(self.shift)}"


@register_input_quantizer("adabin")
class AdaBinActivation(nn.Module):
    """AdaBin's two learned values (Tu et al. 2022): ``a · sign((x − b)/a) + b``, ApproxSign gradient.

    ``a`` starts at 1, ``b`` at 0, one pair for the layer. This is the paper's formula; the authors' code adds ``a · b``
    where the paper adds ``b``.

    >>> AdaBinActivation()(torch.tensor([-0.5, 0.5])).tolist()
    [-1.0, 1.0]
    """

    def __init__(self) -> None:
        super().__init__()
        self.distance, self.centre = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(()))

    def reset_parameters(self) -> None:
        """Start the two values at −1 and +1."""
        nn.init.ones_(self.distance)
        nn.init.zeros_(self.centre)

    def forward(self, inputs: Tensor) -> Tensor:
        """``b − a`` or ``b + a`` for each input."""
        balanced = (inputs - self.centre) / self.distance
        return self.distance * F.polynomial(balanced, F.sign_symbols(balanced)) + self.centre


@register_input_quantizer("swish-sign")
class SwishSignActivation(nn.Module):
    """The sign with BNN+'s SwishSign gradient of steepness ``beta``.

    See :func:`~equalbits.functional.standardised.swish_sign`.
    """

    def __init__(self, beta: float = 5.0) -> None:
        super().__init__()
        check_steepness(beta)
        self.beta = beta

    def forward(self, inputs: Tensor) -> Tensor:
        """±1 for each input."""
        return swish_sign(inputs, F.sign_symbols(inputs), self.beta)

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        return f"{self.beta}"


@register_input_quantizer("bihalf")
class BiHalfActivation(nn.Module):
    """The authors' bi-half layer (Li and van Gemert 2021): in training the share ``p_pos`` of each channel is +1.

    The share is exact over the batch and all positions; see :func:`~equalbits.functional.activations.bihalf_inputs`
    for the gradient, which pulls each input towards its bit. In eval there may be no batch to rank, and each input
    takes its own sign, as in the authors' code: the pull has put the boundary near 0 by then.

    >>> BiHalfActivation()(torch.tensor([[0.1], [0.2], [0.3], [0.4]])).flatten()
    tensor([-1., -1.,  1.,  1.])
    """

    axis: int = 1

    def __init__(self, p_pos: float = 0.5, *, pull: float = 6.0) -> None:
        super().__init__()
        check_p_pos(p_pos)
        if not is_number(pull) or not math.isfinite(pull):
            raise ValueError(f"pull={pull!r} is no strength: it must be a finite number; 6 is usual, 0 pulls nothing")
        self.p_pos, self.pull = p_pos, pull

    def fit_inputs_(self, channels: int, axis: int) -> None:
        """Note which axis of a layer's input the channels lie along."""
        self.axis = axis

    def forward(self, inputs: Tensor) -> Tensor:
        """±1 for each input; the channel is the second axis, or the one that the layer said."""
        if self.training:
            channel_second = inputs.movedim(self.axis, 1) if inputs.dim() > 1 else inputs
            found = activations.bihalf_inputs(channel_second, p_pos=self.p_pos, pull=self.pull)
            return found.movedim(1, self.axis)
        return F.straight_through(inputs, F.sign_symbols(inputs))

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        return f"{self.p_pos}, pull={self.pull}"


@register_input_quantizer("hwgq")
class HWGQ(nn.Module):
    """The half-wave Gaussian quantizer (Cai et al. 2017) in 1 or 2 ``bits``: 0, or one of 1 or 3 positive values.

    See :func:`~equalbits.functional.activations.halfwave`. It takes the place of a ReLU behind a batch norm.
    """

    def __init__(self, bits: int = 1) -> None:
        super().__init__()
        if bits not in activations.HALFWAVE_LEVELS:
            raise ValueError(f"bits={bits} is not known: the half-wave quantizer has 1 or 2")
        self.bits = bits

    def forward(self, inputs: Tensor) -> Tensor:
        """One of ``2^bits`` values for each input."""
        return activations.halfwave(inputs, self.bits)

    def extra_repr(self) -> str:
        """The settings, as the constructor takes them."""
        return f"{self.bits}"


def per_channel(values: Tensor, inputs: Tensor, axis: int = 1) -> Tensor:
    """One value for each channel, shaped to meet ``inputs``, whose channels lie along ``axis``."""
    return values.view(-1, *(1,) * (inputs.dim() - 1 - axis % inputs.dim()))
