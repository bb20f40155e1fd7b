"""Base classes of the quantizers for weights (:class:`WeightQuantizer`) and for layer inputs (:class:`InputQuantizer`).

A weight quantizer has two methods: ``symbols`` returns the symbol of each latent, and ``forward`` returns the values
that the layer multiplies with, including their gradient. The methods of the literature are in ``equalbits.nn.methods``,
one file each; the input quantizers are in ``equalbits.nn.inputs``.
"""

import inspect
import math
from collections.abc import Collection

from torch import Tensor, nn

from equalbits import functional as F


class Quantizer(nn.Module):
    """Module whose settings are attributes with the names of the constructor's arguments."""

    def extra_repr(self) -> str:
        """Return the settings: positional ones always, keyword-only ones where they differ from the default."""
        shown = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = vars(self).get(name, inspect.Parameter.empty)
            changed = parameter.kind is not parameter.KEYWORD_ONLY or value != parameter.default
            if changed and value is not inspect.Parameter.empty:
                shown.append(f"{name}={value!r}")
        return ", ".join(shown)


class WeightQuantizer(Quantizer):
    """Latent weights in, quantized weights out. The first axis of the latents is the filter.

    ``p_pos`` is the guaranteed share of +1 in every filter, None where the method guarantees none. ``has_own_scale`` is
    True for methods that multiply their symbols by a scale of their own.
    """

    p_pos: float | None = None
    has_own_scale: bool = False

    def symbols(self, latents: Tensor) -> Tensor:
        """Return the symbol of each latent: −1, +1, or 0 where pruned. No gradient."""
        raise NotImplementedError

    def forward(self, latents: Tensor) -> Tensor:
        """Return the values the layer multiplies with, before its scale; by default symbols, straight through."""
        return F.straight_through(latents, self.symbols(latents))

    def fit_(self, latents: Tensor) -> None:
        """Create the state per latent or per filter. Called once, by the layer that takes the quantizer."""

    def at_epoch_(self, latents: Tensor) -> None:
        """Update the quantizer before each epoch, in place. It may synchronize with the device."""

    def after_step_(self, latents: Tensor) -> None:
        """Update the latents after each step, in place. It must not synchronize: a CUDA graph may record it."""

    def penalty(self, latents: Tensor) -> Tensor:
        """Return the method's term of the loss."""
        return latents.new_zeros(())

    def initial_scale(self, connections: int) -> float:
        """Return the layer's constant scale: ``√(2/D)`` keeps the variance of activations near 1 through a ReLU net.

        It is 1 for methods with a scale of their own.
        """
        return 1.0 if self.has_own_scale else math.sqrt(2 / connections)


class InputQuantizer(Quantizer):
    """Layer inputs (activations) in, quantized inputs out.

    A quantizer that depends on the layer's channels defines ``fit_inputs_(channels, axis)``, which the layer calls.
    """


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}={value!r} is not known: choose one of {', '.join(map(repr, choices))}")
