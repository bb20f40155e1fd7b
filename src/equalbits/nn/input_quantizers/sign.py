"""Sign of the inputs, with one of four gradient estimators."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import InputQuantizer, SharpeningQuantizer, check_choice, sign_values
from equalbits.nn.registry import register_input_quantizer

# A plain dictionary: torch.compile of older versions supports no other mapping.
_PLAIN_ESTIMATORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "clipped": F.clipped,
    "polynomial": F.polynomial,
    "straight": F.straight_through,
}


class SignActivation(SharpeningQuantizer, InputQuantizer):
    """The sign of each input, with sign(0) = +1.

    ``estimator`` is ``"clipped"`` (gradient inside ±1, as in the paper), ``"polynomial"`` (Bi-Real's ApproxSign),
    ``"decaying"`` (IR-Net's EDE, which follows :func:`~equalbits.nn.set_progress`) or ``"straight"``.

    >>> import torch
    >>> SignActivation()(torch.tensor([-0.5, 0.0, 2.0]))
    tensor([-1.,  1.,  1.])
    """

    returns_signs = True

    def __init__(self, estimator: str = "clipped", *, t_min: float = 0.1, t_max: float = 10.0) -> None:
        check_choice("estimator", estimator, (*_PLAIN_ESTIMATORS, "decaying"))
        super().__init__(t_min, t_max, sharpens=estimator == "decaying")
        self.estimator = estimator

    def values(self, inputs: Tensor) -> Tensor:
        """Return the sign of each input, without gradient."""
        return sign_values(inputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ±1 for each input."""
        if not torch.is_grad_enabled() and F.is_plain_execution():  # several times as fast on a CPU
            return self.values(inputs)
        symbols = F.sign_symbols(inputs)
        if self.estimator == "decaying":
            return F.decaying(inputs, symbols, self.sharpness())
        return _PLAIN_ESTIMATORS[self.estimator](inputs, symbols)


# Only "ede" accepts settings: the other estimators do not use them.
register_input_quantizer("sign")(lambda: SignActivation("clipped"))
register_input_quantizer("approx-sign")(lambda: SignActivation("polynomial"))
register_input_quantizer("sign-straight")(lambda: SignActivation("straight"))
register_input_quantizer("ede")(partial(SignActivation, "decaying"))
