"""The residual blocks: one for real inputs, and two for binary ones, with a shortcut around every convolution.

A sign throws away all but one bit of what flows into a layer; the shortcut around each binary convolution carries the
real value past it (Bi-Real Net, Liu et al. 2018). The sign itself is the convolution's input quantizer.
"""

from typing import NamedTuple, Protocol, cast

from torch import Tensor, nn
from torch.nn import functional as nnf

from equalbits.models.layers import BinaryLayers
from equalbits.nn.normed import clipped_sign, may_fuse, norm_and_add


class MakeBlock(Protocol):
    """Makes one block of a stage."""

    def __call__(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        """``inputs`` to ``outputs`` channels; ``stride`` 2 halves the map."""


class RealInputBlock(nn.Module):
    """The plain residual block (He et al. 2016): convolution, norm, ReLU, twice, the shortcut before the last ReLU."""

    def __init__(self, layers: BinaryLayers, inputs: int, outputs: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1 = layers.conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = layers.conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut
        self.relu = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        """Two convolutions and one shortcut."""
        inner = self.relu(self.norm1(self.conv1(inputs)))
        outputs: Tensor = self.relu(self.norm2(self.conv2(inner)) + self.shortcut(inputs))
        return outputs


class PReLUBlock(nn.Module):
    """The paper's block for binary inputs: sign, convolution, PReLU, norm, add; twice; nothing behind the sum.

    The released networks use one PReLU in both halves; ``shared_prelu=False`` gives each its own.
    """

    def __init__(
        self,
        layers: BinaryLayers,
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
        # A list of one, not one module under two names: a checkpoint then holds the shared weight once.
        self.prelu = nn.ModuleList(nn.PReLU(outputs) for _ in range(1 if shared_prelu else 2))
        self.shortcut = shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        """Two convolutions, a shortcut around each."""
        if may_fuse(inputs, self.norm1, self.norm2):
            return self.forward_fused(Signed(inputs, None), signs=False).reals
        middle = self.norm1(self.prelu[0](self.conv1(inputs))) + self.shortcut(inputs)
        outputs: Tensor = self.norm2(self.prelu[-1](self.conv2(middle))) + middle
        return outputs

    def forward_fused(self, inputs: "Signed", *, signs: bool) -> "Signed":
        """The same in fewer passes, with the inputs' signs where they are known, and with its own where wanted."""
        slopes = [cast("Tensor", self.prelu[place].weight) for place in (0, -1)]
        within = clipped_sign(self.conv2)
        first, shortcut = _convolved(self.conv1, inputs), self.shortcut(inputs.reals)
        middle = Signed(*norm_and_add(self.norm1, first, slope=slopes[0], residual=shortcut, signs=within))
        second = _convolved(self.conv2, middle)
        return Signed(*norm_and_add(self.norm2, second, slope=slopes[1], residual=middle.reals, signs=signs))


class Signed(NamedTuple):
    """What flows between blocks, with its signs where they were found on the way."""

    reals: Tensor
    signs: Tensor | None


class PReLUBlocks(nn.Sequential):
    """Blocks in a row. In a compiled step each finds the signs that the next begins with."""

    def forward(self, inputs: Tensor) -> Tensor:
        """One after the other."""
        blocks = cast("list[PReLUBlock]", list(self))
        if not may_fuse(inputs, *(norm for block in blocks for norm in (block.norm1, block.norm2))):
            outputs: Tensor = super().forward(inputs)  # type: ignore[no-untyped-call]
            return outputs
        flowing = Signed(inputs, None)
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            flowing = block.forward_fused(flowing, signs=following is not None and clipped_sign(following.conv1))
        return flowing.reals


class NormedConv(nn.Sequential):
    """A convolution ``conv``, perhaps a ``prelu``, a ``norm``: in a compiled step the last two are one operation."""

    conv: nn.Module
    norm: nn.BatchNorm2d
    prelu: nn.PReLU

    def forward(self, inputs: Tensor) -> Tensor:
        """One after the other."""
        if not may_fuse(inputs, self.norm):
            outputs: Tensor = super().forward(inputs)  # type: ignore[no-untyped-call]
            return outputs
        slope = self.prelu.weight if hasattr(self, "prelu") else None
        return norm_and_add(self.norm, self.conv(inputs), slope=slope, residual=None)[0]


def _convolved(conv: nn.Module, inputs: Signed) -> Tensor:
    outputs: Tensor = conv(inputs.reals) if inputs.signs is None else conv.forward_quantized(inputs.signs)  # type: ignore[operator]
    return outputs


class HardtanhBlock(nn.Module):
    """IR-Net's block for binary inputs (Qin et al. 2020): sign, convolution, norm, add, hardtanh; twice."""

    def __init__(self, layers: BinaryLayers, inputs: int, outputs: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1 = layers.conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = layers.conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut
        self.hardtanh = nn.Hardtanh()

    def forward(self, inputs: Tensor) -> Tensor:
        """Two convolutions, a shortcut around each."""
        middle = self.hardtanh(self.norm1(self.conv1(inputs)) + self.shortcut(inputs))
        outputs: Tensor = self.hardtanh(self.norm2(self.conv2(middle)) + middle)
        return outputs


class PadShortcut(nn.Module):
    """A shortcut without weights (He et al. 2016, option A): every second pixel, and channels of zeros on both sides.

    >>> import torch
    >>> PadShortcut(16, 32)(torch.ones(1, 16, 8, 8)).shape
    torch.Size([1, 32, 4, 4])
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.before = (outputs - inputs) // 2
        self.behind = outputs - inputs - self.before

    def forward(self, inputs: Tensor) -> Tensor:
        """Half the size, more channels."""
        return nnf.pad(inputs[:, :, ::2, ::2], (0, 0, 0, 0, self.before, self.behind))

    def extra_repr(self) -> str:
        """The channels of zeros put before and behind."""
        return f"before={self.before}, behind={self.behind}"
