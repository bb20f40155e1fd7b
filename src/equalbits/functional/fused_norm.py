"""PReLU, batch norm, shortcut and sign between two binary convolutions, as one operation with its backward.

Compiled from separate operations these take a dozen passes over memory, longer than the convolutions around them. Here
they are torch operators, opaque to compile and CUDA graphs (:class:`FusedNorm`). The reference functions below define
them and run anywhere; a GPU uses the kernels of ``kernels/prelu_norm_add_sign.py``. The backward keeps the input and
one bit per output, not the output itself; the signs are written as bits, too, for the convolution that reads them.
"""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from itertools import zip_longest
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from equalbits.functional.binarize import sign_symbols
from equalbits.functional.execution_mode import is_plain, is_plain_execution, plain_twin
from equalbits.functional.gradients_from_bits import ANY_LAYOUT, SETTINGS, ConvSettings, in_format
from equalbits.functional.packed_bits import BitLayout, pack_bits, unpack_bits
from equalbits.functional.precision import at_least_float32

#: Rows of the statistics, one value per channel: of the PReLU output, then sums over its inputs up to 0.
MEAN, VARIANCE, INVERSE_DEVIATION, LOW_SUM, LOW_SQUARES = range(5)

_Tensors = tuple[Tensor, ...]
#: A reference function and the number of tensors that it returns.
_Reference = tuple[Callable[..., _Tensors], int]
# Given, since torch 2.6 cannot infer it for lists of tensors.
_UPDATE = "(Tensor(a0!)[] running, Tensor(a1!)[] counts, Tensor[] latest, float[] factors, float momentum) -> ()"


class FusedNorm:
    """A fused norm as torch operators and, for plain execution, as an autograd function; called, it is either.

    ``forward`` is the reference: from ``c``, the norm's input, and ``inputs`` to ``y``, its signs (empty if not asked
    for) and others. ``backward`` returns the gradients of the residual and of ``c``, and others, from those of ``y``
    and of its signs, ``c``, and ``saved``, which ``save`` takes from the inputs after ``c`` and the outputs.
    ``input_gradients`` are those of the inputs after ``c``, from the results of ``backward``. A GPU computes both by
    the module of kernels called ``name``.
    """

    def __init__(
        self,
        name: str,
        schemas: tuple[str, str],
        forward: _Reference,
        backward: _Reference,
        save: Callable[[Sequence[Any], _Tensors], tuple[Tensor | None, ...]],
        input_gradients: Callable[..., tuple[Tensor | None, ...]],
    ) -> None:
        (inputs, saved), outputs, results = schemas, _tensors(forward[1]), _tensors(backward[1])
        self.name, self.save, self.input_gradients = name, save, input_gradients
        self.reference_forward, self.reference_backward, self.saved = forward[0], backward[0], saved.count(",") + 1
        gradients = "Tensor? g_y, Tensor? g_s"
        self.forward_op = _operator(name, f"(Tensor c, {inputs}) -> {outputs}", forward[0], forward[0])
        self.backward_op = _operator(
            f"{name}_backward", f"({gradients}, Tensor c, {saved}) -> {results}", backward[0], backward[0]
        )
        convolved = f"Tensor packed, Tensor weight, {saved}, SymInt[] shape, bool channels_last, {SETTINGS}"
        self.recomputed_op = _operator(
            f"recomputed_{name}_backward",
            f"({gradients}, {convolved}) -> {results}",
            self.recomputed_gradients,
            self._fake_recomputed,
        )
        self.forward_op.register_kernel("cuda")(self.forward)
        self.backward_op.register_kernel("cuda")(self.gradients)
        self.forward_op.register_autograd(self.backward, setup_context=self.setup_context)
        once = torch.autograd.function.once_differentiable(self.backward)
        self.plain = plain_twin(self.forward, self.setup_context, once)

    def __call__(self, c: Tensor, *others: Any) -> Any:
        """Return the outputs, with their gradients."""
        return (self.plain.apply if is_plain(c) else self.forward_op)(c, *others)

    def kernels(self, c: Tensor) -> ModuleType | None:
        """Import kernels when first needed; None on another device, without Triton or for an unsupported dtype."""
        if c.device.type != "cuda":
            return None
        try:
            gpu = import_module(f"equalbits.functional.kernels.{self.name}")
        except ImportError:
            return None
        return gpu if c.dtype in gpu.DTYPES else None

    def forward(self, c: Tensor, *others: Any) -> _Tensors:
        """Return the outputs, computed by the kernels on a GPU."""
        gpu = self.kernels(c)
        return gpu.forward(c, *others) if gpu else self.reference_forward(c, *others)

    def gradients(
        self, g_y: Tensor | None, g_s: Tensor | None, c: Tensor, *others: Any, overwrite: bool = False
    ) -> _Tensors:
        """Return the results of the backward; with ``overwrite`` a GPU writes the gradient of ``c`` into its memory."""
        gpu = self.kernels(c)
        if gpu is None:
            return self.reference_backward(g_y, g_s, c, *others)
        return gpu.backward(g_y, g_s, c, *others, overwrite=overwrite)  # type: ignore[no-any-return]

    def recomputed_gradients(
        self, g_y: Tensor | None, g_s: Tensor | None, packed: Tensor, weight: Tensor, *others: Any
    ) -> _Tensors:
        """Return :meth:`gradients` where ``c`` is a convolution, computed again from the bits of its input."""
        saved, (shape, channels_last, *form) = others[: self.saved], others[self.saved :]
        signs = BitLayout(tuple(shape), channels_last).unpack(packed, weight.dtype)
        c = torch.convolution(signs, weight, None, *ConvSettings(*form))
        del signs
        g_residual, g_c, *rest = self.gradients(g_y, g_s, c, *saved, overwrite=True)
        return g_residual, in_format(g_c, channels_last=True), *rest

    def _fake_recomputed(
        self, g_y: Tensor | None, g_s: Tensor | None, packed: Tensor, weight: Tensor, *others: Any
    ) -> _Tensors:
        like = g_y if g_s is None else g_s
        assert like is not None  # as backward checks
        c = weight.new_empty(like.shape).contiguous(memory_format=torch.channels_last)
        return self.reference_backward(g_y, g_s, c, *others[: self.saved])

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: _Tensors) -> None:
        """Keep what the backward needs; signs that were not asked for have no gradient, nor have the statistics."""
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(() if output[1].numel() else output[1:2]), *output[2:])
        ctx.save_for_backward(inputs[0], *self.save(inputs[1:], output))

    def backward(self, ctx: Any, g_y: Tensor | None, g_s: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        """Return the gradients of all inputs."""
        if g_y is None and g_s is None:
            return (None,) * len(ctx.needs_input_grad)
        c, *saved = ctx.saved_tensors
        found = (self.gradients if is_plain(c) else self.backward_op)(g_y, g_s, c, *saved)
        return found[1], *wanted(self.input_gradients(g_y, g_s, saved, found), ctx.needs_input_grad[1:])


def _operator(name: str, schema: str, function: Callable[..., _Tensors], fake: Callable[..., _Tensors]) -> Any:
    operator = torch.library.custom_op(f"equalbits::{name}", function, schema=schema, **ANY_LAYOUT)
    operator.register_fake(fake)
    return operator


def _tensors(count: int) -> str:
    return f"({', '.join(count * ['Tensor'])})"


def wanted(gradients: Iterable[Tensor | None], needed: Iterable[bool]) -> list[Tensor | None]:
    """Return the gradients that are needed, None for other inputs."""
    return [gradient if need else None for gradient, need in zip_longest(gradients, needed)]


def prelu_norm_add_sign(
    c: Tensor,
    slope: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    *,
    eps: float = 1e-5,
    signs: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor]:
    """Return ``y = batch_norm(prelu(c)) + residual``, its signs, their bits, and the batch's mean and variance.

    ``c`` is (batch, channel, …); ``slope`` has one entry per channel or one for all; None means no PReLU. With
    ``signs`` the second result is +1 where ``y ≥ 0``, −1 elsewhere, and its gradient passes where ``|y| < 1``
    (:func:`~equalbits.functional.clipped`); the third holds ``y ≥ 0`` as bits, (position, byte of 8 channels), for
    :func:`~equalbits.functional.convolve_signs`. Without it both are None. ``y`` has the dtype of ``c`` and is channels
    last. The variance is biased, as used for normalization; mean and variance have no gradient. For the running
    variance multiply it by ``n / (n − 1)``, with ``n = c.numel() / channels``.
    """
    channels = c.shape[1]
    if c.numel() < 2 * channels:
        raise ValueError(f"c has shape {tuple(c.shape)}: a batch norm in training needs two values for each channel")
    fits = weight.shape == (channels,) and bias.shape == (channels,)
    fits = fits and (slope is None or slope.shape == (channels,) or slope.shape == (1,))
    if not fits or (residual is not None and residual.shape != c.shape):
        shapes = [None if tensor is None else tuple(tensor.shape) for tensor in (slope, weight, bias, residual)]
        raise ValueError(f"slope, weight, bias and residual have shapes {shapes}, which do not fit c, {tuple(c.shape)}")
    residual = None if residual is None else residual.to(c.dtype)
    y, s, positive, _, stats = PRELU(c, slope, weight, bias, residual, eps, signs)
    return y, s if signs else None, positive if signs else None, stats[MEAN], stats[VARIANCE]


def as_rows(tensor: Tensor) -> Tensor:
    """Return the tensor as contiguous (position, channel): a view if it is channels last, else a copy."""
    return tensor.movedim(1, -1).reshape(-1, tensor.shape[1]).contiguous()


def from_rows(rows: Tensor, c: Tensor) -> Tensor:
    """View rows of (position, channel) as a channels-last tensor of the shape of ``c``."""
    return rows.view(c.shape[0], *c.shape[2:], c.shape[1]).movedim(-1, 1)


def reference_forward(
    c: Tensor,
    slope: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    eps: float,
    signs: bool,
) -> _Tensors:
    """Return ``y``, its signs, the bits of ``y ≥ 0`` and of ``|y| < 1``, and the statistics.

    Without ``signs`` the second, third and fourth are empty.
    """
    rows = wide_rows(c)
    z = rows if slope is None else torch.where(rows > 0, rows, slope * rows)
    variance, mean = torch.var_mean(z, dim=0, correction=0)
    inverse = (variance + eps).rsqrt()
    wide_y = (z - mean) * inverse * weight + bias
    y = (wide_y if residual is None else wide_y + wide_rows(residual)).to(c.dtype)
    low = rows.clamp(max=0)
    stats = torch.stack((mean, variance, inverse, low.sum(dim=0), low.square().sum(dim=0)))
    if not signs:
        no_bits = (c.new_empty(0, dtype=torch.uint8) for _ in range(2))
        return from_rows(y, c), c.new_empty(0), *no_bits, stats
    return from_rows(y, c), from_rows(sign_symbols(y), c), pack_bits(y >= 0), pack_bits(y.abs() < 1), stats


def reference_backward(
    g_y: Tensor | None, g_s: Tensor | None, c: Tensor, slope: Tensor | None, weight: Tensor, near: Tensor, stats: Tensor
) -> _Tensors:
    """Return the gradients of ``y`` (empty if equal to ``g_y``), of ``c``, of (weight, bias), and of the slope."""
    g = torch.zeros((), dtype=c.dtype, device=c.device) if g_y is None else as_rows(g_y)
    total = c.new_empty(0)
    if g_s is not None:
        g = (g + wide_rows(g_s) * unpack_bits(near, c.shape[1])).to(c.dtype)
        total = from_rows(g, c)
    g, rows, count = g.to(stats.dtype), wide_rows(c), c.numel() // c.shape[1]
    z = rows if slope is None else torch.where(rows > 0, rows, slope * rows)
    normed = (z - stats[MEAN]) * stats[INVERSE_DEVIATION]
    g_bias, g_weight = g.sum(dim=0), (g * normed).sum(dim=0)
    g_z = weight * stats[INVERSE_DEVIATION] * (g - g_bias / count - normed * g_weight / count)
    g_c = g_z if slope is None else torch.where(rows > 0, g_z, slope * g_z)
    g_slope = stats.new_empty(0) if slope is None else (g_z * rows.clamp(max=0)).sum(dim=0)
    return total, from_rows(g_c.to(c.dtype), c), torch.stack((g_weight, g_bias)), g_slope


def wide_rows(tensor: Tensor) -> Tensor:
    """Return :func:`as_rows` in at least float32."""
    return as_rows(tensor).to(at_least_float32(tensor.dtype))


def _save(inputs: Sequence[Any], output: _Tensors) -> tuple[Tensor | None, ...]:
    return inputs[0], inputs[1], *output[3:]


def _input_gradients(
    g_y: Tensor | None, g_s: Tensor | None, saved: Sequence[Any], found: _Tensors
) -> tuple[Tensor | None, ...]:
    """Return the gradients of slope, weight, bias and residual."""
    total, _, g_affine, g_slope = found
    g_weight, g_bias = g_affine.unbind()
    if saved[0] is not None and saved[0].shape[0] == 1:
        g_slope = g_slope.sum(dim=0, keepdim=True)
    return g_slope, g_weight, g_bias, g_y if g_s is None else total


PRELU = FusedNorm(
    "prelu_norm_add_sign",
    (
        "Tensor? slope, Tensor gain, Tensor bias, Tensor? residual, float eps, bool signs",
        "Tensor? slope, Tensor gain, Tensor near, Tensor stats",
    ),
    forward=(reference_forward, 5),
    backward=(reference_backward, 4),
    save=_save,
    input_gradients=_input_gradients,
)


def update_running_stats(
    running: list[Tensor], counts: list[Tensor], latest: list[Tensor], factors: list[float], momentum: float
) -> None:
    """Update running statistics by those of a batch times their factors, and count the batch, in a few launches."""
    update = _update if is_plain_execution() else _update_op
    update(running, counts, latest, factors, momentum)


def _update(
    running: list[Tensor], counts: list[Tensor], latest: list[Tensor], factors: list[float], momentum: float
) -> None:
    wide = [tensor.to(mine.dtype) for tensor, mine in zip(latest, running, strict=True)]
    torch._foreach_lerp_(running, torch._foreach_mul(wide, factors), momentum)
    torch._foreach_add_(counts, 1)


_update_op = torch.library.custom_op(
    "equalbits::update_running_stats", _update, mutates_args=("running", "counts"), schema=_UPDATE
)


@_update_op.register_fake
def _(running: list[Tensor], counts: list[Tensor], latest: list[Tensor], factors: list[float], momentum: float) -> None:
    return None
