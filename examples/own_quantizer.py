"""A custom quantizer: define the symbols and the gradient, and it works in every layer and with every tool.

This one takes the sign of each weight minus its filter's mean, and passes no gradient to latents beyond ±1. Run it
with ``python examples/own_quantizer.py``.
"""

import torch
from torch import Tensor, nn

import equalbits as eb
from equalbits import functional as F
from equalbits.nn import WeightQuantizer


class MeanSign(WeightQuantizer):
    """+1 at or above each filter's mean, −1 below; the first axis of the latents is the filter."""

    def symbols(self, latents: Tensor) -> Tensor:
        """Return ±1 for each latent."""
        rows = latents.flatten(1)
        return F.sign_symbols(rows - rows.mean(dim=1, keepdim=True)).view(latents.shape)

    def forward(self, latents: Tensor) -> Tensor:
        """Return the symbols with their gradient; without this method it would pass unchanged."""
        return F.clipped(latents, self.symbols(latents))


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
print(eb.binarize_(model, MeanSign()), end="\n\n")
model(torch.randn(4, 8)).sum().backward()

# It guarantees no share, so its counts are shown and not checked. A method that sets p_pos is checked against it.
print(eb.audit(model))
