"""Pools of the ResNets for large images: that of the stem, and those of shortcuts in binary networks."""

from typing import cast

import torch
from torch import Tensor, nn

from equalbits.functional import average_of_norm, overlapping_max_pool
from equalbits.nn import BatchStatistics, QuickConv2d, calls_hooks, can_fuse, update_running_statistics

#: Whether training steps on a GPU compute averaging shortcuts on averages alone. Not measured yet.
AVERAGED_SHORTCUTS = False

#: Whether compiled steps keep a byte for each output of the stem's pool, and add the gradients of its windows without a
#: float32 tensor of the input's size. Not measured yet.
POOLS_IN_BYTES = False


class StemPool(nn.MaxPool2d):
    """Max pool of overlapping windows, 3×3 with stride 2."""

    def __init__(self) -> None:
        super().__init__(3, stride=2, padding=1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the pool."""
        if POOLS_IN_BYTES and torch.compiler.is_compiling() and torch.is_grad_enabled() and inputs.dim() == 4:
            return overlapping_max_pool(inputs, 3, 2, 1)
        return cast("Tensor", super().forward(inputs))

    def _get_name(self) -> str:
        return "MaxPool2d"


class AveragedShortcut(nn.Sequential):
    """1×1 convolution ``conv``, ``norm`` and 2×2 average ``pool``; training on a GPU can compute averages alone."""

    conv: nn.Conv2d
    norm: nn.BatchNorm2d

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the modules in sequence."""
        if not self.can_average(inputs) or calls_hooks(self):
            outputs: Tensor = super().forward(inputs)  # type: ignore[no-untyped-call]
            return outputs
        norm = self.norm
        outputs, mean, variance = average_of_norm(inputs, self.conv.weight, norm.weight, norm.bias, eps=norm.eps)
        size = inputs.shape[0] * inputs.shape[2] * inputs.shape[3]
        update_running_statistics([BatchStatistics(norm, mean.detach(), variance.detach(), size)])
        return outputs

    def can_average(self, inputs: Tensor) -> bool:
        """Return whether to compute averages alone: in a training step on a GPU, if no module inside was replaced."""
        unmodified = [type(module) for module in self] == [QuickConv2d, nn.BatchNorm2d, nn.AvgPool2d]
        even = inputs.dim() == 4 and inputs.shape[2] % 2 == inputs.shape[3] % 2 == 0
        return AVERAGED_SHORTCUTS and unmodified and even and can_fuse(inputs, self.norm)
