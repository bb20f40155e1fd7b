"""Base class of layers with a scale and quantizers: right after any loader, also one that starts on ``meta``."""

import math
import warnings
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from equalbits.nn.quantizer import WeightQuantizer, refit_, reset_
from equalbits.nn.weight_cache import CachedWeight


class LoadableLayer(nn.Module):
    """Base class that loads ``scale`` and quantizers.

    ``scale`` is a buffer, initialized by the quantizer and loaded from checkpoints. One case is an exception: if the
    checkpoint holds the initial scale of another method, 1 or ``√(2/D)``, the layer keeps its own, so that a dense
    checkpoint can be pruned. Any scale that differs from the initial one causes a warning. A scale that is a
    parameter, or that was changed before loading, is loaded like any tensor.

    The scale of a layer on the ``meta`` device has data all the same, and ``to_empty`` initializes it, so it is right
    whatever loader fills the weights. ``awaits_weights`` is True while the weights of such a layer are not loaded.
    """

    weight: Tensor
    scale: Tensor
    weight_quantizer: WeightQuantizer
    input_quantizer: nn.Module | None
    awaits_weights: bool = False
    cached_weight: CachedWeight | None

    def to_filters(self, weight: Tensor) -> Tensor:
        """Return the weight with the filter as first axis."""
        return weight

    def initial_scale(self) -> float:
        """Return the scale that the layer starts with, by its quantizer and its number of connections."""
        return self.weight_quantizer.initial_scale(self._connections())

    def _connections(self) -> int:
        """Return ``D``, the number of weights of a filter."""
        return math.prod(self.to_filters(self.weight.detach()).shape[1:])

    def _quantizers(self) -> list[nn.Module]:
        return [each for each in (self.weight_quantizer, self.input_quantizer) if each is not None]

    def train(self, mode: bool = True) -> Self:
        """Set the mode and clear the cache; after a load by Hugging Face, restart quantizers that were missing."""
        self.cached_weight = None
        if self.awaits_weights and _was_loaded(self._parameters.get("weight")):  # the loader's last step is eval()
            self.awaits_weights = False
            for quantizer in self._quantizers():
                if not any(map(_was_loaded, (*quantizer.parameters(), *quantizer.buffers()))):
                    self._restart_(quantizer)
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.cached_weight = None  # frees its memory
        weight = self._parameters.get("weight")
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if weight is not None and weight.is_meta and not self.weight.is_meta:  # by to_empty: no other way has data
            self.scale.detach().fill_(self.initial_scale())
            for quantizer in self._quantizers():
                reset_(quantizer)
            self.awaits_weights = True
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a scale that Hugging Face's loader did not find in the checkpoint stays the initial one.

        That loader replaces each tensor of a ``meta`` model, missing ones by uninitialized memory. Weights quantized by
        torchao raise: they would be quantized latents.
        """
        if name == "weight" and type(value).__module__.partition(".")[0] == "torchao":
            raise ValueError(
                f"{type(value).__name__} would quantize the latents of a binary layer, not its bits: call "
                f"equalbits.freeze(model) first, or leave binary layers out"
            )
        is_new = name == "scale" and self.awaits_weights and type(value) is Tensor and not value.is_meta
        if is_new and not _was_loaded(value):
            value = torch.full_like(value, self.initial_scale())
        super().__setattr__(name, value)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The checkpoint of a real layer has neither scale nor quantizer: the layer's own are kept.
        is_real = prefix + "scale" not in state_dict
        weight = state_dict.get(prefix + "weight")
        fits = weight is not None and weight.shape == self.weight.shape  # otherwise torch raises
        if is_real or (fits and self._keeps_own_scale(state_dict[prefix + "scale"])):
            state_dict[prefix + "scale"] = self.scale
        super()._load_from_state_dict(state_dict, prefix, *args)
        if weight is not None and (self.awaits_weights or self.scale.is_meta) and not self.weight.is_meta:
            self._leave_meta_()
        if is_real:
            for name, value in self.state_dict(keep_vars=True).items():
                if name.startswith(("weight_quantizer.", "input_quantizer.")):
                    state_dict.setdefault(prefix + name, value)

    def _keeps_own_scale(self, scale: Tensor) -> bool:
        """Return whether a checkpoint's scale is another method's initial one; warn if it is not this method's."""
        comparable = scale.shape == self.scale.shape == () and scale.is_floating_point() and not scale.is_meta
        if not comparable or isinstance(self.scale, nn.Parameter):
            return False
        rounding = 4 * max(torch.finfo(tensor.dtype).eps for tensor in (scale, self.scale))
        connections, method = self._connections(), type(self.weight_quantizer).__name__
        initial = self.initial_scale()
        unchanged = self.scale.is_meta or math.isclose(self.scale, initial, rel_tol=rounding)
        if not unchanged or math.isclose(scale, initial, rel_tol=rounding):
            return False
        of_another = any(math.isclose(scale, each, rel_tol=rounding) for each in (1.0, math.sqrt(2 / connections)))
        action = "it is another method's, so the layer keeps its own" if of_another else "it is loaded nevertheless"
        warnings.warn(
            f"the checkpoint's scale is not the initial one of {method}: {action}; set layer.scale if that is wrong",
            stacklevel=2,
        )
        return of_another

    def _leave_meta_(self) -> None:
        """Initialize scale and quantizers on the device of the weights; a checkpoint may overwrite them afterwards."""
        self.awaits_weights = False
        if self.scale.is_meta:
            self.scale = torch.full_like(self.scale, self.initial_scale(), device=self.weight.device)
        elif not isinstance(self.scale, nn.Parameter):
            self.scale = self.scale.to(self.weight.device)
        for quantizer in self._quantizers():
            quantizer.to_empty(device=self.weight.device)
            self._restart_(quantizer)

    def _restart_(self, quantizer: nn.Module) -> None:
        """Reset a quantizer and fit it to the weights, which ``fit_`` must not change."""
        reset_(quantizer)
        if isinstance(quantizer, WeightQuantizer):
            refit_(quantizer, self.to_filters(self.weight.detach()).clone())


def _was_loaded(tensor: Tensor | None) -> bool:
    """Return whether Hugging Face's loader marked a tensor as read from the checkpoint."""
    return getattr(tensor, "_is_hf_initialized", False)
