"""Residual blocks: one for real inputs, three for binary inputs with a shortcut around every convolution.

A sign keeps one bit of a layer's input; the shortcut around each binary convolution keeps the real value (Bi-Real Net,
Liu et al. 2018). The sign itself is the convolution's input quantizer.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from torch import Tensor, nn
from torch.nn import functional as nnf

from equalbits.functional import SignBits, is_plain
from equalbits.models.image_classifier import ImageClassifier
from equalbits.models.layer_factory import LayerFactory
from equalbits.nn import (
    BatchStatistics,
    BinaryConv2d,
    RPReLU,
    activation_after,
    calls_hooks,
    can_fuse,
    can_recompute,
    conv_norm_and_add,
    is_recomputable,
    norm_and_add,
    recomputes,
    shift_before_sign,
    update_running_statistics,
)


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with a norm each, ``prelus`` PReLUs, and a shortcut; the subclasses join them."""

    def __init__(
        self, layers: LayerFactory, inputs: int, outputs: int, stride: int, shortcut: nn.Module, *, prelus: int = 0
    ) -> None:
        super().__init__()
        self.conv1 = layers.conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = layers.conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        if prelus:
            # A list even of one, so that a checkpoint holds a shared weight once.
            self.prelu = nn.ModuleList(nn.PReLU(outputs) for _ in range(prelus))
        self.shortcut = shortcut


class RealInputBlock(ResidualBlock):
    """Basic residual block (He et al. 2016): convolution, norm, ReLU; twice; the sum is before the last ReLU."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply two convolutions and one shortcut."""
        inner = nnf.relu(self.norm1(self.conv1(inputs)))
        return nnf.relu(self.norm2(self.conv2(inner)) + self.shortcut(inputs))


class HardtanhBlock(ResidualBlock):
    """IR-Net's block for binary inputs (Qin et al. 2020): sign, convolution, norm, add, Hardtanh; twice."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply two convolutions with a shortcut around each."""
        middle = nnf.hardtanh(self.norm1(self.conv1(inputs)) + self.shortcut(inputs))
        return nnf.hardtanh(self.norm2(self.conv2(middle)) + middle)


class FusedBlock(ResidualBlock):
    """Base of the blocks that a training step on a GPU computes in fewer passes; the plain form is ``forward_plain``.

    :func:`~equalbits.nn.recompute_convolutions_` sets ``recomputes_convolutions``.
    """

    recomputes_convolutions = False

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply two convolutions with a shortcut around each."""
        if self.recomputes_convolutions and self.is_fusable(inputs):
            return run_fused([self], inputs)
        return self.forward_plain(inputs)

    def forward_plain(self, inputs: Tensor) -> Tensor:
        """Apply the modules one by one."""
        raise NotImplementedError

    def activations(self) -> tuple[nn.Module, nn.Module]:
        """Return the activations of both halves."""
        raise NotImplementedError

    def is_fusable(self, inputs: Tensor) -> bool:
        """Return whether :meth:`forward_fused` may replace :meth:`forward`: no module inside was replaced."""
        unmodified = type(self) in _ACTIVATIONS and all(type(e) is _ACTIVATIONS[type(self)] for e in self.activations())
        fits = can_recompute if self.recomputes_convolutions else can_fuse
        return unmodified and fits(inputs, self.norm1, self.norm2)

    def forward_fused(self, inputs: "Activations", following: nn.Module | None) -> "Activations":
        """Apply the block in fewer passes, with the signs that the ``following`` convolution starts with."""
        first, second = self.activations()
        middle = _conv_norm(
            (self.conv1, first, self.norm1),
            inputs,
            residual=self.shortcut(inputs.reals),
            following=self.conv2,
            recompute=self.recomputes_convolutions,
        )
        return _conv_norm(
            (self.conv2, second, self.norm2),
            middle,
            residual=middle.reals,
            following=following,
            recompute=self.recomputes_convolutions,
        )


class RPReLUBlock(FusedBlock):
    """ReActNet's block for binary inputs (Liu et al. 2020): sign, convolution, norm, add, RPReLU; twice."""

    def __init__(self, layers: LayerFactory, inputs: int, outputs: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__(layers, inputs, outputs, stride, shortcut)
        self.act1, self.act2 = RPReLU(outputs), RPReLU(outputs)

    def forward_plain(self, inputs: Tensor) -> Tensor:
        """Apply the modules one by one."""
        middle = self.act1(self.norm1(self.conv1(inputs)) + self.shortcut(inputs))
        outputs: Tensor = self.act2(self.norm2(self.conv2(middle)) + middle)
        return outputs

    def activations(self) -> tuple[nn.Module, nn.Module]:
        """Return the activations after both sums."""
        return self.act1, self.act2


class PReLUBlock(FusedBlock):
    """The paper's block for binary inputs: sign, convolution, PReLU, norm, add; twice; no activation after the sum.

    With ``prelus=1`` both halves share one PReLU, as in the released networks; with 2 each has its own.
    """

    def forward_plain(self, inputs: Tensor) -> Tensor:
        """Apply the modules one by one."""
        middle = self.norm1(self.prelu[0](self.conv1(inputs))) + self.shortcut(inputs)
        outputs: Tensor = self.norm2(self.prelu[-1](self.conv2(middle))) + middle
        return outputs

    def activations(self) -> tuple[nn.Module, nn.Module]:
        """Return the activations before both norms."""
        return self.prelu[0], self.prelu[-1]


#: Blocks that can be fused, and the class of their activations.
_ACTIVATIONS: dict[type[nn.Module], type[nn.Module]] = {PReLUBlock: nn.PReLU, RPReLUBlock: RPReLU}


class ConvNorm(nn.Sequential):
    """Convolution ``conv``, optional ``prelu`` and ``norm``; in a compiled step the last two are one operation."""

    conv: nn.Module
    norm: nn.BatchNorm2d

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the modules in sequence."""
        if self.is_fusable(inputs) and not calls_hooks(self):
            return run_fused([self], inputs)
        outputs: Tensor = super().forward(inputs)  # type: ignore[no-untyped-call]
        return outputs

    def is_fusable(self, inputs: Tensor) -> bool:
        """Return whether :meth:`forward_fused` may replace :meth:`forward`: no module inside was replaced."""
        names, prelu = list(self._modules), self._modules.get("prelu")
        unmodified = names == ["conv", "norm"] or (names == ["conv", "prelu", "norm"] and type(prelu) is nn.PReLU)
        return unmodified and can_fuse(inputs, self.norm)

    def forward_fused(self, inputs: "Activations", following: nn.Module | None) -> "Activations":
        """Apply the convolution, then the rest in one operation, with the signs that ``following`` starts with."""
        modules = self.conv, self._modules.get("prelu"), self.norm
        return _conv_norm(modules, inputs, residual=None, following=following)


class FusedClassifier(ImageClassifier):
    """Classifier whose fused modules pass signs to each other."""

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores (logits)."""
        if not can_fuse(images) or calls_hooks(self):
            return super().forward(images)
        self.check(images)
        return run_fused(self, images)


class Activations(NamedTuple):
    """Activations between fused modules: values, batch statistics of all norms so far, and the signs if computed."""

    reals: Tensor
    signs: tuple[Tensor, SignBits] | None = None  # as ±1, and as bits
    statistics: tuple[BatchStatistics, ...] = ()


def run_fused(modules: Iterable[nn.Module], inputs: Tensor) -> Tensor:
    """Apply modules in sequence, fused where possible, and update all running statistics at the end.

    A fused module computes the signs that the next one starts with. Outside of blocks, a norm and the PReLU or RPReLU
    behind it are fused before a convolution that starts with RSign.
    """
    parts = [part for each in modules for part in (each if type(each) is nn.Sequential else [each])]
    activations = Activations(inputs)
    while parts:
        taken, activations = _apply_first(parts, activations)
        parts = parts[taken:]
    update_running_statistics(activations.statistics)
    return activations.reals


def _apply_first(parts: Sequence[nn.Module], inputs: Activations) -> tuple[int, Activations]:
    """Apply the first part, or a norm with the activation behind it; return how many."""
    part, *others = parts
    if isinstance(part, (FusedBlock, ConvNorm)) and part.is_fusable(inputs.reals):
        return 1, part.forward_fused(inputs, _first_conv(others))
    if type(part) is nn.PReLU and others and type(others[0]) is nn.BatchNorm2d and can_fuse(inputs.reals, others[0]):
        reals, signs, statistics = norm_and_add(
            others[0], inputs.reals, activation=part, following=_first_conv(others[1:])
        )
        return 2, Activations(reals, signs, (*inputs.statistics, statistics))
    if len(others) > 1 and (activation := activation_after(part, others[0])):
        conv = _first_conv(others[1:])
        if shift_before_sign(conv) is not None and can_fuse(inputs.reals, part):
            norm = cast("nn.BatchNorm2d", part)
            reals, signs, statistics = norm_and_add(norm, inputs.reals, activation=activation, following=conv)
            return 2, Activations(reals, signs, (*inputs.statistics, statistics))
    if inputs.signs is not None and type(part) is BinaryConv2d:
        return 1, Activations(part.forward_quantized(*inputs.signs), None, inputs.statistics)
    return 1, Activations(part(inputs.reals), None, inputs.statistics)


def _first_conv(parts: Sequence[nn.Module]) -> nn.Module | None:
    """Return the convolution that reads the input of these parts."""
    first = parts[0] if parts else None
    return first.conv1 if isinstance(first, FusedBlock) else first


def _conv_norm(
    modules: tuple[nn.Module, nn.Module | None, nn.BatchNorm2d],
    inputs: Activations,
    *,
    residual: Tensor | None,
    following: nn.Module | None,
    recompute: bool = False,
) -> Activations:
    """Apply a convolution, on signs if they are known; then norm, sum and activation in one operation.

    With ``recompute`` the backward pass computes a binary convolution again. The result has the signs that the
    ``following`` convolution starts with.
    """
    conv, activation, norm = modules
    known = cast("nn.PReLU | RPReLU | None", activation)
    recompute = recompute or recomputes(conv, inputs.reals)
    binary = cast("BinaryConv2d", conv)
    if is_recomputable(conv) and (recompute or (is_plain(inputs.reals) and binary.kernel_size != (1, 1))):
        signs = inputs.signs or binary.quantize_as_bits(inputs.reals)
        found = conv_norm_and_add(
            (binary, norm), signs, activation=known, residual=residual, following=following, recompute=recompute
        )
    else:
        outputs = conv(inputs.reals) if inputs.signs is None else conv.forward_quantized(*inputs.signs)  # type: ignore[operator]
        found = norm_and_add(norm, outputs, activation=known, residual=residual, following=following)
    reals, signed, statistics = found
    return Activations(reals, signed, (*inputs.statistics, statistics))


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
