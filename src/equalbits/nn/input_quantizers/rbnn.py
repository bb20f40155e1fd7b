"""Input quantizer of RBNN (Lin et al. 2020): the sign of standardized samples. Weights: ``nn/methods/rbnn.py``."""

from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import InputQuantizer, SharpeningQuantizer, sign_values
from equalbits.nn.registry import register_input_quantizer


@register_input_quantizer("rbnn")
class RBNNActivation(SharpeningQuantizer, InputQuantizer):
    """Standardize each sample over all its values, then take the sign.

    The slope is that of the weights with ``t`` at least 1, so ``k = 1``; the gradient flows on through the
    standardization.

    >>> import torch
    >>> RBNNActivation()(torch.tensor([[1.0, 2.0, 3.0, 6.0]]))
    tensor([[-1., -1.,  1.,  1.]])
    """

    axis = -1
    returns_signs = True

    def __init__(self, *, t_min: float = 1e-2, t_max: float = 10.0) -> None:
        super().__init__(t_min, t_max)

    def standardized(self, inputs: Tensor) -> Tensor:
        """Return each sample standardized, as (sample, value)."""
        wide = F.at_least_float32(inputs.dtype)  # a mean in half precision changes signs
        return F.standardize(self.batched(inputs).to(wide))

    def values(self, inputs: Tensor) -> Tensor:
        """Return ±1 for each input, without gradient."""
        return sign_values(self.standardized(inputs)).to(inputs.dtype).view(inputs.shape)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ±1 for each input; the sample is the first axis."""
        rows = self.standardized(inputs)
        sharpness = self.sharpness().clamp(min=1.0)
        symbols = F.sign_symbols(rows).to(inputs.dtype)
        return F.surrogate(rows, symbols, F.triangle_slope(rows.detach(), sharpness)).view(inputs.shape)
