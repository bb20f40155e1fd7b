"""RSign, the input quantizer of ReActNet (Liu et al. 2020): the sign after a learned shift per channel."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from equalbits import functional as F
from equalbits.nn.quantizer import InputQuantizer
from equalbits.nn.registry import register_input_quantizer


@register_input_quantizer("rsign")
class RSign(InputQuantizer):
    """``sign(x + b)`` with one learned shift ``b`` per channel and the ApproxSign gradient.

    The shifts start at 0 and get the gradient of the inputs, summed over batch and positions. Without ``channels`` they
    are created by the layer that takes the quantizer, or by the first input. The channel is the second axis unless the
    layer sets another: a linear layer's is the last.

    >>> RSign(2)(torch.tensor([[-0.5, 0.5]])).tolist()
    [[-1.0, 1.0]]
    """

    shift: nn.Parameter | UninitializedParameter

    def __init__(self, channels: int | None = None) -> None:
        super().__init__()
        self.shift = UninitializedParameter() if channels is None else nn.Parameter(torch.zeros(channels))

    def fit_(self, channels: int) -> None:
        """Create the shifts, all 0, unless they exist."""
        if isinstance(self.shift, UninitializedParameter):
            with torch.inference_mode(False):  # an inference tensor could never be trained
                self.shift.materialize((channels,))
                nn.init.zeros_(self.shift)

    def fit_inputs_(self, channels: int, axis: int) -> None:
        """Create the shifts for a layer's input, along its channel axis."""
        if not isinstance(self.shift, UninitializedParameter) and len(self.shift) not in (1, channels):
            raise ValueError(
                f"RSign(channels={len(self.shift)}) does not fit a layer of {channels} input channels: omit channels, "
                "and every layer creates the shifts it needs"
            )
        self.axis = axis
        self.fit_(channels)

    def reset_parameters(self) -> None:
        """Reset the shifts to 0."""
        if not isinstance(self.shift, UninitializedParameter):
            nn.init.zeros_(self.shift)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ±1 for each input."""
        self.fit_(inputs.shape[self.axis])
        shifted = inputs + per_channel(self.shift, inputs, self.axis)
        return F.polynomial(shifted, F.sign_symbols(shifted))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if prefix + "shift" in state_dict:
            self.fit_(len(state_dict[prefix + "shift"]))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """Return the number of channels, once known."""
        return "" if isinstance(self.shift, UninitializedParameter) else f"channels={len(self.shift)}"


def per_channel(values: Tensor, inputs: Tensor, axis: int = 1) -> Tensor:
    """Reshape one value per channel to broadcast against ``inputs``, whose channels lie along ``axis``."""
    return values.view(-1, *(1,) * (inputs.dim() - 1 - axis % inputs.dim()))
