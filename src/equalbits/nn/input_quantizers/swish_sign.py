"""Sign of the inputs with the gradient of BNN+ (Darabi et al. 2018)."""

from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import InputQuantizer, sign_values
from equalbits.nn.registry import register_input_quantizer


@register_input_quantizer("swish-sign")
class SwishSignActivation(InputQuantizer):
    """The sign with the slope :func:`~equalbits.functional.swish_sign` of steepness ``beta``."""

    returns_signs = True

    def __init__(self, beta: float = 5.0) -> None:
        super().__init__()
        F.check_beta(beta)
        self.beta = beta

    def values(self, inputs: Tensor) -> Tensor:
        """Return the sign of each input, without gradient."""
        return sign_values(inputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ±1 for each input."""
        return F.swish_sign(inputs, F.sign_symbols(inputs), self.beta)
