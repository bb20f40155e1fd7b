"""Exponential moving average of a net's weights, which is evaluated and kept in place of the weights themselves."""

from itertools import chain

import torch
from torch import Tensor, nn

from equalbits.training.evaluation import device_of

_STATISTICS = ("running_mean", "running_var")


class WeightAverage:
    """The average of latent weights, real weights and batch-norm statistics.

    A binary layer quantizes its averaged latents, so its weights stay binary and their share of +1 exact. All other
    buffers, such as the quantizers' progress, stay those of the model.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        statistics = ((name, value) for name, value in model.named_buffers() if name.split(".")[-1] in _STATISTICS)
        named = chain(model.named_parameters(), statistics)  # a tied weight once
        self.current = {name: value.detach() for name, value in named if value.is_floating_point()}
        self.tensors = {name: value.clone() for name, value in self.current.items()}
        self.updates = torch.zeros((), device=device_of(model))  # on the device: a CUDA graph counts, too

    def update(self) -> None:
        """Move the average towards the current weights: ``decay · average + (1 − decay) · current``.

        The decay of update ``n = 0, 1, …`` is at most ``(1 + n) / (10 + n)``, so that the initial weights fade early.
        """
        averages = list(self.tensors.values())
        changes = torch._foreach_sub(list(self.current.values()), averages)
        torch._foreach_mul_(changes, (9 / (10 + self.updates)).clamp(min=1 - self.decay))
        torch._foreach_add_(averages, changes)
        self.updates += 1

    def swap(self) -> None:
        """Exchange the model's weights and their average, in place: a CUDA graph keeps the addresses."""
        for current, average in zip(self.current.values(), self.tensors.values(), strict=True):
            held = current.clone()
            current.copy_(average)
            average.copy_(held)

    def load(self, tensors: dict[str, Tensor], updates: int) -> None:
        """Restore the average from a model's state dict, and the number of updates it has had."""
        self.updates.fill_(updates)
        for name in self.tensors.keys() & tensors.keys():  # a buffer that is not saved starts over
            self.tensors[name].copy_(tensors[name])
