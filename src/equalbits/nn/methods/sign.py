"""Sign, the paper's baseline. The function is :func:`equalbits.functional.sign`."""

from equalbits.nn.quantizer import SignQuantizer, check_choice
from equalbits.nn.registry import register_quantizer


@register_quantizer("sign")
class Sign(SignQuantizer):
    """The sign of each weight, with sign(0) = +1.

    ``estimator`` is ``"straight"`` (gradient unchanged, as in the paper) or ``"clipped"`` (only where ``|w| ≤ 1``).

    >>> import torch
    >>> Sign()(torch.tensor([[-0.5, 0.0, 2.0]]))
    tensor([[-1.,  1.,  1.]])
    """

    def __init__(self, *, estimator: str = "straight") -> None:
        super().__init__()
        check_choice("estimator", estimator, ("straight", "clipped"))
        self.estimator = estimator
