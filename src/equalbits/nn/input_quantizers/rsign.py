"""RSign, the input quantizer of ReActNet (Liu et al. 2020): the sign after a learned shift per channel."""

import torch
from torch import Tensor, nn

from equalbits import functional as F
from equalbits.nn.quantizer import InputQuantizer, fitted, sign_values
from equalbits.nn.registry import register_input_quantizer


@register_input_quantizer("rsign")
class RSign(InputQuantizer):
    """``sign(x + b)`` with one learned shift ``b`` per channel and the ApproxSign gradient.

    The shifts start at 0 and get the gradient of the inputs, summed over batch and positions. Without ``channels`` they
    are created by the layer that takes the quantizer. The channel is the second axis unless the layer sets another: a
    linear layer's is the last.

    >>> RSign(2)(torch.tensor([[-0.5, 0.5]])).tolist()
    [[-1.0, 1.0]]
    """

    shift: nn.Parameter | None
    returns_signs = True

    def __init__(self, channels: int | None = None) -> None:
        super().__init__()
        self.register_parameter("shift", None if channels is None else nn.Parameter(torch.zeros(channels)))

    def fit_inputs_(self, channels: int, axis: int) -> None:
        """Create the shifts for a layer's input, along its channel axis."""
        if self.shift is None:
            self.shift = nn.Parameter(torch.zeros(channels))
        elif len(self.shift) not in (1, channels):
            raise ValueError(
                f"RSign(channels={len(self.shift)}) does not fit a layer of {channels} input channels: omit channels, "
                "and every layer creates the shifts it needs"
            )
        self.axis = axis

    def reset_parameters(self) -> None:
        """Reset the shifts to 0."""
        if self.shift is not None:
            nn.init.zeros_(self.shift)

    def shifted(self, inputs: Tensor) -> Tensor:
        """Return the inputs plus the shift of their channel."""
        return inputs + per_channel(fitted(self, "shift"), inputs, self.axis)

    def values(self, inputs: Tensor) -> Tensor:
        """Return ±1 for each input, without gradient."""
        return sign_values(self.shifted(inputs))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ±1 for each input, in its dtype: under autocast that is narrower than the shift's."""
        shifted = self.shifted(inputs)
        return F.polynomial(shifted, F.sign_symbols(shifted).to(inputs.dtype))

    def extra_repr(self) -> str:
        """Return the number of channels, once known."""
        return "" if self.shift is None else f"channels={len(self.shift)}"


def per_channel(values: Tensor, inputs: Tensor, axis: int = 1) -> Tensor:
    """Reshape one value per channel to broadcast against ``inputs``, whose channels lie along ``axis``."""
    after = -1 - axis if axis < 0 else inputs.dim() - 1 - axis  # a negative axis needs no dim(), which fx cannot trace
    return values.view(-1, *(1,) * after)
