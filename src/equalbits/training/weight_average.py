"""Exponential moving average of a net's weights, which is evaluated and kept in place of the weights themselves."""

from itertools import chain

import torch
from torch import Tensor, nn


class WeightAverage:
    """The average of all floating-point parameters and buffers: latent weights, real weights, batch-norm statistics.

    A binary layer quantizes its averaged latents, so its weights stay binary and their share of +1 exact.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        named = chain(model.named_parameters(), model.named_buffers())  # a tied weight once
        self.current = {name: value.detach() for name, value in named if value.is_floating_point()}
        self.tensors = {name: value.clone() for name, value in self.current.items()}

    def update(self) -> None:
        """Move the average towards the current weights: ``decay · average + (1 − decay) · current``."""
        torch._foreach_lerp_(list(self.tensors.values()), list(self.current.values()), 1 - self.decay)

    def swap(self) -> None:
        """Exchange the model's weights and their average, in place: a CUDA graph keeps the addresses."""
        for current, average in zip(self.current.values(), self.tensors.values(), strict=True):
            held = current.clone()
            current.copy_(average)
            average.copy_(held)

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore the average from a model's state dict."""
        for name in self.tensors.keys() & tensors.keys():  # a buffer that is not saved starts over
            self.tensors[name].copy_(tensors[name])
