"""Input quantizer of AdaBin (Tu et al. 2022): two learned values. The weights are in ``nn/methods/adabin.py``."""

import torch
from torch import Tensor, nn

from equalbits import functional as F
from equalbits.nn.quantizer import InputQuantizer, sign_values
from equalbits.nn.registry import register_input_quantizer


@register_input_quantizer("adabin")
class AdaBinActivation(InputQuantizer):
    """``a · sign((x − b)/a) + b`` with one learned pair per layer and the ApproxSign gradient.

    ``a`` starts at 1, ``b`` at 0. This is the paper's formula; the authors' code adds ``a · b`` where the paper adds
    ``b``.

    >>> AdaBinActivation()(torch.tensor([-0.5, 0.5])).tolist()
    [-1.0, 1.0]
    """

    def __init__(self) -> None:
        super().__init__()
        self.distance, self.centre = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(()))

    def reset_parameters(self) -> None:
        """Reset the two values to −1 and +1."""
        nn.init.ones_(self.distance)
        nn.init.zeros_(self.centre)

    def values(self, inputs: Tensor) -> Tensor:
        """Return ``b − a`` or ``b + a`` for each input, without gradient."""
        return self.distance * sign_values((inputs - self.centre) / self.distance) + self.centre

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``b − a`` or ``b + a`` for each input."""
        standardized = (inputs - self.centre) / self.distance
        return self.distance * F.polynomial(standardized, F.sign_symbols(standardized)) + self.centre
