"""Bi-half (Li et al. 2022), the paper's method. The function is :func:`equalbits.functional.bihalf`."""

import torch
from torch import Tensor

from equalbits import functional as F
from equalbits.nn.quantizer import WeightQuantizer, check_choice
from equalbits.nn.registry import register_quantizer


@register_quantizer("bihalf")
class BiHalf(WeightQuantizer):
    """Exactly the share ``p_pos`` of +1 in every filter, by optimal transport; one half is the paper's bi-half.

    ``estimator`` is ``"straight"`` (gradient unchanged, as in the paper) or ``"clipped"`` (only where ``|w| ≤ 1``).

    >>> import torch
    >>> BiHalf()(torch.tensor([[0.1, 0.2, 0.3, 0.4]]))
    tensor([[-1., -1.,  1.,  1.]])
    >>> BiHalf(p_pos=0.25)
    BiHalf(p_pos=0.25)
    """

    p_pos: float

    def __init__(self, p_pos: float = 0.5, *, estimator: str = "straight") -> None:
        super().__init__()
        F.check_p_pos(p_pos)
        check_choice("estimator", estimator, ("straight", "clipped"))
        self.p_pos, self.estimator = p_pos, estimator

    def symbols(self, latents: Tensor) -> Tensor:
        """Return +1 for the top ``p_pos`` of each filter, −1 for the rest (Eq. 4)."""
        return F.transport_symbols(latents, self.p_pos)

    def scaled_symbols(self, latents: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the symbols times a constant scale by :func:`equalbits.functional.scaled_transport_symbols`."""
        if getattr(self.symbols, "__func__", None) is not BiHalf.symbols:
            return super().scaled_symbols(latents, scale, dtype)
        return F.scaled_transport_symbols(latents, self.p_pos, scale, dtype)
