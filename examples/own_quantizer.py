"""A quantizer of one's own: answer two questions, and it works in every layer and with every tool.

Which symbol does each latent take, and which gradient flows back? This one takes the sign about each filter's mean, and
lets no gradient through to latents beyond ±1. Run it with ``python examples/own_quantizer.py``.
"""

import torch
from torch import Tensor, nn

import equalbits as eb
from equalbits import functional as F
from equalbits.nn import WeightQuantizer


class MeanSign(WeightQuantizer):
    """+1 from each filter's mean on, −1 below; the first axis of the latents is the filter."""

    def symbols(self, latents: Tensor) -> Tensor:
        """±1 for each latent."""
        rows = latents.flatten(1)
        return F.sign_symbols(rows - rows.mean(dim=1, keepdim=True)).view(latents.shape)

    def estimate(self, latents: Tensor, symbols: Tensor) -> Tensor:
        """The symbols, joined to the latents by the gradient; left out, it would pass unchanged."""
        return F.clipped(latents, symbols)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
print(eb.binarize_(model, MeanSign()), end="\n\n")
model(torch.randn(4, 8)).sum().backward()

# It promises no share, so its counts are shown and not judged. A method that keeps one sets p_pos, and is held to it.
print(eb.audit(model))
