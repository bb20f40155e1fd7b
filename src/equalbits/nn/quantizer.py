"""Base classes of the quantizers for weights (:class:`WeightQuantizer`) and for layer inputs (:class:`InputQuantizer`).

A weight quantizer has two methods: ``symbols`` returns the symbol of each latent, and ``forward`` returns the values
that the layer multiplies with, including their gradient. The methods of the literature are in ``equalbits.nn.methods``,
one file each; the input quantizers are in ``equalbits.nn.input_quantizers``.
"""

import inspect
import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from equalbits import functional as F

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = [getattr(nn.modules.module, f"_global{kind}") for kind in _HOOKS]


def is_hooked(module: nn.Module) -> bool:
    """Return whether a call of ``module`` calls a hook."""
    own = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(own) or any(_GLOBAL_HOOKS)


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
    estimator: str = "straight"

    def symbols(self, latents: Tensor) -> Tensor:
        """Return the symbol of each latent, −1, +1, or 0 where pruned, without gradient."""
        raise NotImplementedError(f"{type(self).__name__} has no symbols method: return the −1, 0 or +1 of each latent")

    def forward(self, latents: Tensor) -> Tensor:
        """Return the values the layer multiplies with, before its scale; by default symbols, by the estimator."""
        return F.estimate(latents, self.symbols(latents), self.estimator)

    def scaled_symbols(self, latents: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the symbols times a constant scale, in ``dtype``, without gradient."""
        return (self.symbols(latents) * scale).to(dtype)

    def passes_gradient(self) -> bool:
        """Return whether the values are the symbols, and their gradient is that of the latents."""
        plain = getattr(self.forward, "__func__", None) is WeightQuantizer.forward and not is_hooked(self)
        return plain and self.estimator == "straight"

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


class SharpeningQuantizer(Quantizer):
    """Base of quantizers whose slope sharpens in training, by the EDE schedule from ``t_min`` to ``t_max``.

    :func:`~equalbits.nn.set_progress` sets the progress that it follows; ``sharpens`` says whether it follows any.
    """

    progress: Tensor

    def __init__(self, t_min: float, t_max: float, *, sharpens: bool = True) -> None:
        super().__init__()
        if not 0 < t_min <= t_max < math.inf:
            raise ValueError(
                f"t_min={t_min}, t_max={t_max}: the sharpness must grow from a value above 0 to a finite one"
            )
        self.t_min, self.t_max = t_min, t_max
        self.register_buffer("progress", torch.zeros(()) if sharpens else None)

    def sharpness(self) -> Tensor:
        """Return the sharpness at this point of training."""
        return F.ede_sharpness(self.progress, self.t_min, self.t_max)


class SignQuantizer(WeightQuantizer):
    """Base of methods whose symbols are the signs of the latents."""

    def symbols(self, latents: Tensor) -> Tensor:
        """Return the sign of each latent, +1 for zero."""
        return F.sign_symbols(latents)


class GainQuantizer(SignQuantizer):
    """Base of methods with a learned gain per filter, which starts at the filter's mean ``|w|``."""

    has_own_scale = True

    def fit_(self, latents: Tensor) -> None:
        """Create the gains."""
        self.gains = nn.Parameter(F.as_filters(latents).abs().mean(dim=1))

    def scale_filters(self, values: Tensor) -> Tensor:
        """Multiply each filter of ``values`` by its gain."""
        return values * fitted(self, "gains").view(-1, *(1,) * (values.dim() - 1))


class InputQuantizer(Quantizer):
    """Layer inputs (activations) in, quantized inputs out. ``axis`` is that of the channels.

    A class may define ``values(inputs)``: the output in eval mode without gradient, in operations that other tools can
    trace. :func:`~equalbits.freeze` uses it in place of ``forward``.

    ``returns_signs`` states that every output is −1 or +1, so a layer may keep it as bits for the backward pass. It is
    not inherited: a subclass may return other values.
    """

    axis: int = 1
    returns_signs: bool = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls.returns_signs = vars(cls).get("returns_signs", False)

    def fit_inputs_(self, channels: int, axis: int) -> None:
        """Adapt to the inputs of the layer that takes the quantizer; ``axis`` is negative."""
        self.axis = axis

    def batched(self, inputs: Tensor) -> Tensor:
        """Return the inputs with a batch axis: inputs that begin with the channels are one sample."""
        return inputs[None] if inputs.dim() == -self.axis else inputs


def sign_values(inputs: Tensor) -> Tensor:
    """Compute :func:`equalbits.functional.sign_symbols` in operations that torch.fx can trace as well."""
    return (inputs >= 0).to(inputs.dtype) * 2 - 1


def fitted(module: nn.Module, name: str) -> Tensor:
    """Return a parameter or buffer that ``fit_`` creates; raise if there is none yet."""
    tensor: Tensor | None = getattr(module, name, None)
    if tensor is None:
        raise ValueError("the quantizer has no parameters yet: a layer makes them, or call fit_(latents) first")
    return tensor


def reset_(quantizer: nn.Module) -> None:
    """Reset all state that does not depend on the latents: the progress, and parts with ``reset_parameters``."""
    for part in quantizer.modules():
        progress = part._buffers.get("progress")
        if progress is not None:
            progress.zero_()
        reset = getattr(part, "reset_parameters", None)
        if callable(reset):
            reset()


def refit_(quantizer: WeightQuantizer, latents: Tensor) -> None:
    """Fit the quantizer to the latents, reusing the tensors it has: an optimizer or a CUDA graph may hold them."""
    held = [
        (part, name, tensor)
        for part in quantizer.modules()
        for name, tensor in (*part._parameters.items(), *part._buffers.items())
        if tensor is not None
    ]
    quantizer.fit_(latents)
    for part, name, tensor in held:
        made = getattr(part, name)
        if made is not tensor and made.shape == tensor.shape:
            tensor.detach().copy_(made.detach())
            setattr(part, name, tensor)


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}={value!r} is not known: choose one of {', '.join(map(repr, choices))}")
