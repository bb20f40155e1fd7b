"""Residual blocks: one for real inputs, two for binary inputs with a shortcut around every convolution.

A sign keeps one bit of a layer's input; the shortcut around each binary convolution keeps the real value (Bi-Real Net,
Liu et al. 2018). The sign itself is the convolution's input quantizer.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

from torch import Tensor, nn
from torch.nn import functional as nnf

from equalbits.models.image_classifier import ImageClassifier
from equalbits.models.layer_factory import LayerFactory
from equalbits.nn.fused_norm import (
    BatchStatistics,
    can_fuse,
    norm_and_add,
    starts_with_clipped_sign,
    update_running_statistics,
)


class MakeBlock(Protocol):
    """Function that creates one block of a stage."""

    def __call__(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        """Create a block from ``inputs`` to ``outputs`` channels; ``stride`` 2 halves the map."""


class RealInputBlock(nn.Module):
    """Basic residual block (He et al. 2016): convolution, norm, ReLU; twice; the sum is before the last ReLU."""

    def __init__(self, layers: LayerFactory, inputs: int, outputs: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1 = layers.conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = layers.conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut
        self.relu = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply two convolutions and one shortcut."""
        inner = self.relu(self.norm1(self.conv1(inputs)))
        outputs: Tensor = self.relu(self.norm2(self.conv2(inner)) + self.shortcut(inputs))
        return outputs


class PReLUBlock(nn.Module):
    """The paper's block for binary inputs: sign, convolution, PReLU, norm, add; twice; no activation after the sum.

    The released networks share one PReLU between both halves; ``shared_prelu=False`` creates two.
    """

    def __init__(
        self,
        layers: LayerFactory,
        inputs: int,
        outputs: int,
        stride: int,
        shortcut: nn.Module,
        *,
        shared_prelu: bool = True,
    ) -> None:
        super().__init__()
        self.conv1 = layers.conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = layers.conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        # A list of one, not one module under two names, so that a checkpoint holds the shared weight once.
        self.prelu = nn.ModuleList(nn.PReLU(outputs) for _ in range(1 if shared_prelu else 2))
        self.shortcut = shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply two convolutions with a shortcut around each."""
        middle = self.norm1(self.prelu[0](self.conv1(inputs))) + self.shortcut(inputs)
        outputs: Tensor = self.norm2(self.prelu[-1](self.conv2(middle))) + middle
        return outputs

    def forward_fused(self, inputs: "Activations", *, signs: bool) -> "Activations":
        """Apply the block in fewer passes, with the inputs' signs if known; return the outputs' signs if ``signs``."""
        slopes = [cast("Tensor", self.prelu[place].weight) for place in (0, -1)]
        within = starts_with_clipped_sign(self.conv2)
        first, shortcut = _convolve(self.conv1, inputs), self.shortcut(inputs.reals)
        reals, bits, statistics = norm_and_add(self.norm1, first, slope=slopes[0], residual=shortcut, signs=within)
        middle = Activations(reals, bits, (*inputs.statistics, statistics))
        second = _convolve(self.conv2, middle)
        reals, bits, statistics = norm_and_add(self.norm2, second, slope=slopes[1], residual=reals, signs=signs)
        return Activations(reals, bits, (*middle.statistics, statistics))


class Activations(NamedTuple):
    """Activations between fused modules: values, their signs if computed, and batch statistics of all norms so far."""

    reals: Tensor
    signs: Tensor | None = None
    statistics: tuple[BatchStatistics, ...] = ()


class FusedSequential(nn.Sequential):
    """Modules in sequence that a compiled training step runs in fewer passes (:func:`run_fused`)."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the modules in sequence."""
        if self.is_unmodified() and can_fuse(inputs, *self.norms()):
            return run_fused([self], inputs)
        outputs: Tensor = super().forward(inputs)  # type: ignore[no-untyped-call]
        return outputs

    def is_unmodified(self) -> bool:
        """Return whether the modules have the original classes, so that fusing them is exact."""
        raise NotImplementedError

    def norms(self) -> list[nn.Module]:
        """Return the norms to fuse with adjacent operations."""
        raise NotImplementedError

    def first_conv(self) -> nn.Module:
        """Return the convolution that takes the input."""
        raise NotImplementedError

    def forward_fused(self, inputs: Activations, *, signs: bool) -> Activations:
        """Apply the sequence in fewer passes, with signs of the outputs if ``signs``."""
        raise NotImplementedError


def run_fused(parts: Sequence[nn.Module], inputs: Tensor) -> Tensor:
    """Apply modules in sequence, fused where possible, and update all running statistics at the end.

    A fused sequence computes the signs that the next one starts with.
    """
    activations = Activations(inputs)
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        if isinstance(part, FusedSequential) and part.is_unmodified() and can_fuse(activations.reals, *part.norms()):
            wanted = isinstance(following, FusedSequential) and starts_with_clipped_sign(following.first_conv())
            activations = part.forward_fused(activations, signs=wanted)
        else:
            activations = Activations(part(activations.reals), None, activations.statistics)
    update_running_statistics(activations.statistics)
    return activations.reals


class PReLUBlocks(FusedSequential):
    """Sequence of :class:`PReLUBlock`."""

    def is_unmodified(self) -> bool:
        """Return whether all modules are such blocks with torch's PReLU."""
        blocks = self._blocks()
        return all(type(block) is PReLUBlock and all(type(p) is nn.PReLU for p in block.prelu) for block in blocks)

    def norms(self) -> list[nn.Module]:
        """Return two norms per block."""
        return [norm for block in self._blocks() for norm in (block.norm1, block.norm2)]

    def first_conv(self) -> nn.Module:
        """Return the first convolution of the first block."""
        return self._blocks()[0].conv1

    def forward_fused(self, inputs: Activations, *, signs: bool) -> Activations:
        """Apply the blocks in sequence."""
        blocks = self._blocks()
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            wanted = signs if following is None else starts_with_clipped_sign(following.conv1)
            inputs = block.forward_fused(inputs, signs=wanted)
        return inputs

    def _blocks(self) -> "list[PReLUBlock]":
        return cast("list[PReLUBlock]", list(self))


class ConvNorm(FusedSequential):
    """Convolution ``conv``, optional ``prelu`` and ``norm``; in a compiled step the last two are one operation."""

    conv: nn.Module
    norm: nn.BatchNorm2d
    prelu: nn.PReLU

    def is_unmodified(self) -> bool:
        """Return whether there are only a convolution, an optional torch PReLU and a norm."""
        return list(self._modules) == ["conv", "norm"] or (
            list(self._modules) == ["conv", "prelu", "norm"] and type(self.prelu) is nn.PReLU
        )

    def norms(self) -> list[nn.Module]:
        """Return the norm."""
        return [self.norm]

    def first_conv(self) -> nn.Module:
        """Return the convolution."""
        return self.conv

    def forward_fused(self, inputs: Activations, *, signs: bool) -> Activations:
        """Apply the convolution, then the rest in one operation."""
        slope = self.prelu.weight if hasattr(self, "prelu") else None
        outputs = _convolve(self.conv, inputs)
        reals, bits, statistics = norm_and_add(self.norm, outputs, slope=slope, residual=None, signs=signs)
        return Activations(reals, bits, (*inputs.statistics, statistics))


class ResidualClassifier(ImageClassifier):
    """Classifier whose fused sequences pass signs to each other."""

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores (logits)."""
        if not can_fuse(images):
            return super().forward(images)
        self.check(images)
        return run_fused(list(self), images)


def _convolve(conv: nn.Module, inputs: Activations) -> Tensor:
    outputs: Tensor = conv(inputs.reals) if inputs.signs is None else conv.forward_quantized(inputs.signs)  # type: ignore[operator]
    return outputs


class HardtanhBlock(nn.Module):
    """IR-Net's block for binary inputs (Qin et al. 2020): sign, convolution, norm, add, Hardtanh; twice."""

    def __init__(self, layers: LayerFactory, inputs: int, outputs: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1 = layers.conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = layers.conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut
        self.hardtanh = nn.Hardtanh()

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply two convolutions with a shortcut around each."""
        middle = self.hardtanh(self.norm1(self.conv1(inputs)) + self.shortcut(inputs))
        outputs: Tensor = self.hardtanh(self.norm2(self.conv2(middle)) + middle)
        return outputs


class PadShortcut(nn.Module):
    """Shortcut without weights (He et al. 2016, option A): every second pixel, padded with channels of zeros.

    >>> import torch
    >>> PadShortcut(16, 32)(torch.ones(1, 16, 8, 8)).shape
    torch.Size([1, 32, 4, 4])
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.before = (outputs - inputs) // 2
        self.behind = outputs - inputs - self.before

    def forward(self, inputs: Tensor) -> Tensor:
        """Subsample and pad the channels."""
        return nnf.pad(inputs[:, :, ::2, ::2], (0, 0, 0, 0, self.before, self.behind))

    def extra_repr(self) -> str:
        """Return the number of zero channels before and after."""
        return f"before={self.before}, behind={self.behind}"
