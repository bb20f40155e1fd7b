"""Update latents in the backward pass, each as soon as its gradient is known.

A backward pass usually keeps the gradients of all layers until the optimizer's step. Here each gradient is used and
freed at once, so that the gradients of all layers are never in memory together. The values are the same up to rounding.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

if TYPE_CHECKING:
    from equalbits.nn.binary_layer import BinaryLayer

#: Called with a layer and the gradient of its symbols times the scale; it updates the latents.
Update = Callable[["BinaryLayer", Tensor], None]


class SeveralGradientsError(RuntimeError):
    """A layer's latents have several gradients in a step, which have to be added before the latents are updated."""


class _Gate:
    """Leaf of the graph in place of the latents: computing its gradient updates them."""

    def __init__(self, layer: "BinaryLayer", update: Update) -> None:
        self.layer, self.update = layer, update
        # One element, so that it has an address of its own.
        self.tensor = torch.zeros(1, device=layer.weight.device, requires_grad=True)
        self.count = 0


_GATES: WeakValueDictionary[int, _Gate] = WeakValueDictionary()  # by the address of their tensor


class BackwardUpdates:
    """Updates the latents of layers in the backward pass of what they compute inside ``with``.

    The layers must be those of an :class:`~equalbits.nn.rank_ahead.AheadRanker`, each with a weight of its own. Their
    latents get no ``grad``. The update is hidden from a compiler, so nothing else in the graph may use the latents:
    :meth:`check` raises after the backward pass if something does.
    """

    def __init__(self, layers: Sequence["BinaryLayer"], update: Update) -> None:
        self.gates = [_Gate(layer, update) for layer in layers]
        _GATES.update({gate.tensor.data_ptr(): gate for gate in self.gates})

    def __enter__(self) -> None:
        for gate in self.gates:
            gate.count, gate.tensor.grad = 0, None
            gate.layer.update_gate = gate.tensor

    def __exit__(self, *_: object) -> None:
        for gate in self.gates:
            gate.layer.update_gate = None

    def check(self) -> None:
        """Raise :class:`SeveralGradientsError` if latents have a gradient that did not update them, or two that did."""
        for gate in self.gates:
            if gate.count > 1 or gate.layer.weight.grad is not None:
                raise SeveralGradientsError("the latents of a layer are used more than once in a step")


@torch.library.custom_op("equalbits::update_in_backward", mutates_args=())
def update_in_backward(gradient: Tensor, gate: Tensor) -> Tensor:
    """Update the latents behind a gate; return a gradient for it, whose value has no meaning."""
    found = _GATES[gate.data_ptr()]
    found.count += 1
    found.update(found.layer, gradient)
    return torch.empty_like(gate)


@update_in_backward.register_fake
def _(gradient: Tensor, gate: Tensor) -> Tensor:
    return torch.empty_like(gate)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(gate: Tensor, symbols: Tensor) -> Tensor:
        return symbols.view_as(symbols)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return torch.ops.equalbits.update_in_backward(gradient, *ctx.saved_tensors), None


def through_gate(gate: Tensor, symbols: Tensor) -> Tensor:
    """Return symbols times the scale, given without gradient, whose gradient updates the latents behind the gate."""
    return _Gated.apply(gate, symbols)  # type: ignore[no-any-return, no-untyped-call]
