"""The residual blocks: one for real inputs, and two for binary ones, with a shortcut around every convolution.

A sign throws away all but one bit of what flows into a layer; the shortcut around each binary convolution carries the
real value past it (Bi-Real Net, Liu et al. 2018). The sign itself is the convolution's input quantizer.
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
    """Makes one block of a stage."""

    def __call__(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        """``inputs`` to ``outputs`` channels; ``stride`` 2 halves the map."""


class RealInputBlock(nn.Module):
    """The plain residual block (He et al. 2016): convolution, norm, ReLU, twice, the shortcut before the last ReLU."""

    def __init__(self, layers: LayerFactory, inputs: int, outputs: int, stride: int, shortcut: nn.Module) -> None:
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
        # A list of one, not one module under two names: a checkpoint then holds the shared weight once.
        self.prelu = nn.ModuleList(nn.PReLU(outputs) for _ in range(1 if shared_prelu else 2))
        self.shortcut = shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        """Two convolutions, a shortcut around each."""
        middle = self.norm1(self.prelu[0](self.conv1(inputs))) + self.shortcut(inputs)
        outputs: Tensor = self.norm2(self.prelu[-1](self.conv2(middle))) + middle
        return outputs

    def forward_fused(self, inputs: "Flow", *, signs: bool) -> "Flow":
        """The same in fewer passes, with the inputs' signs where they are known, and with its own where wanted."""
        slopes = [cast("Tensor", self.prelu[place].weight) for place in (0, -1)]
        within = starts_with_clipped_sign(self.conv2)
        first, shortcut = _convolved(self.conv1, inputs), self.shortcut(inputs.reals)
        reals, bits, note = norm_and_add(self.norm1, first, slope=slopes[0], residual=shortcut, signs=within)
        middle = Flow(reals, bits, (*inputs.notes, note))
        second = _convolved(self.conv2, middle)
        reals, bits, note = norm_and_add(self.norm2, second, slope=slopes[1], residual=reals, signs=signs)
        return Flow(reals, bits, (*middle.notes, note))


class Flow(NamedTuple):
    """What flows between fused parts: values, their signs where they were found on the way, and the norms' notes."""

    reals: Tensor
    signs: Tensor | None = None
    notes: tuple[BatchStatistics, ...] = ()


class FusedRow(nn.Sequential):
    """Parts in a row that a compiled step runs in fewer passes (:func:`run_fused`)."""

    def forward(self, inputs: Tensor) -> Tensor:
        """One after the other."""
        if self.is_usual() and can_fuse(inputs, *self.norms()):
            return run_fused([self], inputs)
        outputs: Tensor = super().forward(inputs)  # type: ignore[no-untyped-call]
        return outputs

    def is_usual(self) -> bool:
        """Whether its parts are those it was made of: who puts others in their place may mean something else."""
        raise NotImplementedError

    def norms(self) -> list[nn.Module]:
        """The norms that are fused with what stands around them."""
        raise NotImplementedError

    def first_conv(self) -> nn.Module:
        """What takes the row's input."""
        raise NotImplementedError

    def forward_fused(self, inputs: Flow, *, signs: bool) -> Flow:
        """The row in few passes, with its outputs' signs if wanted."""
        raise NotImplementedError


def run_fused(parts: Sequence[nn.Module], inputs: Tensor) -> Tensor:
    """Parts one after the other. A fused row finds the signs that the next begins with, and notes are kept at once."""
    flow = Flow(inputs)
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        if isinstance(part, FusedRow) and part.is_usual() and can_fuse(flow.reals, *part.norms()):
            wanted = isinstance(following, FusedRow) and starts_with_clipped_sign(following.first_conv())
            flow = part.forward_fused(flow, signs=wanted)
        else:
            flow = Flow(part(flow.reals), None, flow.notes)
    update_running_statistics(flow.notes)
    return flow.reals


class PReLUBlocks(FusedRow):
    """A row of :class:`PReLUBlock`."""

    def is_usual(self) -> bool:
        """Nothing but such blocks, with torch's PReLU."""
        blocks = self._blocks()
        return all(type(block) is PReLUBlock and all(type(p) is nn.PReLU for p in block.prelu) for block in blocks)

    def norms(self) -> list[nn.Module]:
        """Two of each block."""
        return [norm for block in self._blocks() for norm in (block.norm1, block.norm2)]

    def first_conv(self) -> nn.Module:
        """That of the first block."""
        return self._blocks()[0].conv1

    def forward_fused(self, inputs: Flow, *, signs: bool) -> Flow:
        """Block by block."""
        blocks = self._blocks()
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            wanted = signs if following is None else starts_with_clipped_sign(following.conv1)
            inputs = block.forward_fused(inputs, signs=wanted)
        return inputs

    def _blocks(self) -> "list[PReLUBlock]":
        return cast("list[PReLUBlock]", list(self))


class NormedConv(FusedRow):
    """A convolution ``conv``, perhaps a ``prelu``, a ``norm``: in a compiled step the last two are one operation."""

    conv: nn.Module
    norm: nn.BatchNorm2d
    prelu: nn.PReLU

    def is_usual(self) -> bool:
        """A convolution, perhaps torch's PReLU, a norm, and nothing else."""
        return list(self._modules) == ["conv", "norm"] or (
            list(self._modules) == ["conv", "prelu", "norm"] and type(self.prelu) is nn.PReLU
        )

    def norms(self) -> list[nn.Module]:
        """The one."""
        return [self.norm]

    def first_conv(self) -> nn.Module:
        """The one."""
        return self.conv

    def forward_fused(self, inputs: Flow, *, signs: bool) -> Flow:
        """The convolution, and the rest at once."""
        slope = self.prelu.weight if hasattr(self, "prelu") else None
        outputs = _convolved(self.conv, inputs)
        reals, bits, note = norm_and_add(self.norm, outputs, slope=slope, residual=None, signs=signs)
        return Flow(reals, bits, (*inputs.notes, note))


class ResidualClassifier(ImageClassifier):
    """A network whose fused rows know of each other."""

    def forward(self, images: Tensor) -> Tensor:
        """Class scores, before any softmax."""
        if not can_fuse(images):
            return super().forward(images)
        self.check(images)
        return run_fused(list(self), images)


def _convolved(conv: nn.Module, inputs: Flow) -> Tensor:
    outputs: Tensor = conv(inputs.reals) if inputs.signs is None else conv.forward_quantized(inputs.signs)  # type: ignore[operator]
    return outputs


class HardtanhBlock(nn.Module):
    """IR-Net's block for binary inputs (Qin et al. 2020): sign, convolution, norm, add, hardtanh; twice."""

    def __init__(self, layers: LayerFactory, inputs: int, outputs: int, stride: int, shortcut: nn.Module) -> None:
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
