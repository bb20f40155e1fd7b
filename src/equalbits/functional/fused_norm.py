"""Fused norms as torch operators: what the two of them, ``fused_prelu`` and ``fused_rprelu``, have in common.

A batch norm, shortcut and activation compiled from separate operations take a dozen passes over memory, longer than the
convolutions around them. As operators they are opaque to compile and CUDA graphs. Reference functions define them and
run anywhere; a GPU uses kernels.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from itertools import zip_longest
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from equalbits.functional.execution_mode import is_plain, is_plain_execution, kernels_for, plain_twin
from equalbits.functional.packed_bits import LAYOUT, BitLayout, in_format, operator
from equalbits.functional.precision import at_least_float32
from equalbits.functional.products_of_signs import SETTINGS, ConvSettings

#: Rows of the statistics, one value per channel.
MEAN, VARIANCE, INVERSE_DEVIATION = range(3)

Tensors = tuple[Tensor, ...]
#: A reference function and the number of tensors that it returns.
Reference = tuple[Callable[..., Tensors], int]
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
        forward: Reference,
        backward: Reference,
        save: Callable[[Sequence[Any], Tensors], tuple[Tensor | None, ...]],
        input_gradients: Callable[..., tuple[Tensor | None, ...]],
    ) -> None:
        self.keep: Callable[[Tensor, Tensors], Tensor] = lambda c, output: c  # or ``c`` in another form
        (inputs, saved), outputs, results = schemas, _tensors(forward[1]), _tensors(backward[1])
        self.name, self.save, self.input_gradients = name, save, input_gradients
        self.reference_forward, self.reference_backward, self.saved = forward[0], backward[0], saved.count(",") + 1
        gradients = "Tensor? g_y, Tensor? g_s"
        self.forward_op = operator(name, f"(Tensor c, {inputs}) -> {outputs}", forward[0])
        self.backward_op = operator(f"{name}_backward", f"({gradients}, Tensor c, {saved}) -> {results}", backward[0])
        convolved = f"Tensor packed, Tensor weight, {saved}, {LAYOUT}, {SETTINGS}"
        self.recomputed_op = operator(
            f"recomputed_{name}_backward",
            f"({gradients}, {convolved}) -> {results}",
            self.recomputed_gradients,
        )
        self.forward_op.register_kernel("cuda")(self.forward)
        self.backward_op.register_kernel("cuda")(self.gradients)
        self.forward_op.register_autograd(self.backward, setup_context=self.setup_context)
        once = torch.autograd.function.once_differentiable(self.backward)
        self.plain = plain_twin(self.forward, self.setup_context, once)

    def __call__(self, c: Tensor, *others: object) -> Tensors:
        """Return the outputs, with their gradients."""
        function: Callable[..., Tensors] = self.plain.apply if is_plain(c) else self.forward_op
        return function(c, *others)

    def kernels(self, c: Tensor) -> ModuleType | None:
        """Return the module of kernels; None on another device, without Triton or for an unsupported dtype."""
        gpu = kernels_for(self.name, c)
        return gpu if gpu and c.dtype in gpu.DTYPES else None

    def forward(self, c: Tensor, *others: object) -> Tensors:
        """Return the outputs, computed by the kernels on a GPU."""
        gpu = self.kernels(c)
        return gpu.forward(c, *others) if gpu else self.reference_forward(c, *others)

    def gradients(
        self, g_y: Tensor | None, g_s: Tensor | None, c: Tensor, *others: object, overwrite: Container[str] = ()
    ) -> Tensors:
        """Return the results of the backward; a GPU may ``overwrite`` the memory of "c", and of "g_s", with results."""
        gpu = self.kernels(c)
        if gpu is None:
            return self.reference_backward(g_y, g_s, c, *others)
        return gpu.backward(g_y, g_s, c, *others, overwrite=overwrite)  # type: ignore[no-any-return]

    def recomputed_gradients(
        self,
        g_y: Tensor | None,
        g_s: Tensor | None,
        packed: Tensor,
        weight: Tensor,
        *others: Any,
        overwrite: Sequence[str] = (),
    ) -> Tensors:
        """Return :meth:`gradients` where ``c`` is a convolution, computed again from the bits of its input."""
        saved, (shape, channels_last, *form) = others[: self.saved], others[self.saved :]
        signs = BitLayout(tuple(shape), channels_last).unpack(packed, weight.dtype)
        c = torch.convolution(signs, weight, None, *ConvSettings(*form))
        del signs
        # A compiler that infers shapes has tensors without data.
        gradients = partial(self.gradients, overwrite=("c", *overwrite)) if is_plain(c) else self.reference_backward
        g_residual, g_c, *rest = gradients(g_y, g_s, c, *saved)
        return g_residual, in_format(g_c, channels_last=True), *rest

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        """Keep what the backward needs; signs that were not asked for have no gradient, nor have the statistics."""
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(() if output[1].numel() else output[1:2]), *output[2:])
        ctx.save_for_backward(self.keep(inputs[0], output), *self.save(inputs[1:], output))

    def backward(self, ctx: Any, g_y: Tensor | None, g_s: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        """Return the gradients of all inputs."""
        if g_y is None and g_s is None:
            return (None,) * len(ctx.needs_input_grad)
        c, *saved = ctx.saved_tensors
        found = (self.gradients if is_plain(c) else self.backward_op)(g_y, g_s, c, *saved)
        return found[1], *wanted(self.input_gradients(g_y, g_s, saved, found), ctx.needs_input_grad[1:])


def _tensors(count: int) -> str:
    return f"({', '.join(count * ['Tensor'])})"


def wanted(gradients: Iterable[Tensor | None], needed: Iterable[bool]) -> list[Tensor | None]:
    """Return the gradients that are needed, None for other inputs."""
    return [gradient if need else None for gradient, need in zip_longest(gradients, needed)]


def as_rows(tensor: Tensor) -> Tensor:
    """Return the tensor as contiguous (position, channel): a view if it is channels last, else a copy."""
    return tensor.movedim(1, -1).reshape(-1, tensor.shape[1]).contiguous()


def from_rows(rows: Tensor, c: Tensor) -> Tensor:
    """View rows of (position, channel) as a channels-last tensor of the shape of ``c``."""
    return rows.view(c.shape[0], *c.shape[2:], c.shape[1]).movedim(-1, 1)


def wide_rows(tensor: Tensor) -> Tensor:
    """Return :func:`as_rows` in at least float32."""
    return as_rows(tensor).to(at_least_float32(tensor.dtype))


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
