"""What every binary layer shares: real latents under torch's own name, a quantizer, a scale, and symbols kept in eval.

The layer's ``weight`` stays the real latent, so optimizers, ``state_dict`` and checkpoints of the real layer keep
working. What it multiplies with is ``scale · quantizer(weight)``.
"""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from equalbits import functional as F
from equalbits.nn.methods.bihalf import BiHalf
from equalbits.nn.parametrized import parametrization_in_eval
from equalbits.nn.quantizer import WeightQuantizer
from equalbits.nn.quantizer_state import fit_, start_
from equalbits.nn.weight_cache import CachedWeight, find_sources, is_plain_execution, lookup_weight


class BinaryLayer(nn.Module):
    """What all binary layers share. A layer of one's own adds the axes (:meth:`to_filters`) and a forward.

    ``scale`` is a buffer that starts as the quantizer says. A checkpoint brings its own, but for one: where that is
    what another method starts with, 1 or ``√(2/D)``, the layer keeps its own, so that a dense net may go on as a
    pruned one. Whatever else differs from an untouched layer's scale (one set by hand, that of another sparsity) is
    taken. Both are warned of. A scale made a parameter, or set by hand before loading, is loaded like any tensor.
    """

    weight: Tensor
    scale: Tensor
    init: str
    weight_quantizer: WeightQuantizer
    input_quantizer: nn.Module | None
    cached_weight: CachedWeight | None
    ranked_ahead: tuple[int, torch.dtype] | None  # layer number and dtype, set by equalbits.nn.rank_ahead

    def make_binary_(
        self, weight_quantizer: WeightQuantizer | None, input_quantizer: nn.Module | None, init: str = "torch"
    ) -> None:
        """Take the quantizers in (copies, so layers share no state), set the scale, start the latents."""
        weight_quantizer = BiHalf() if weight_quantizer is None else weight_quantizer
        check_quantizers(weight_quantizer, input_quantizer)
        if init not in ("torch", "kaiming"):
            raise ValueError(f"init={init!r} is not known: choose 'torch' (as torch starts the layer) or 'kaiming'")
        self.init = init
        if self._connections() == 0:
            raise ValueError(f"weight has shape {tuple(self.weight.shape)}: a filter needs at least one connection")
        self.weight_quantizer = copy.deepcopy(weight_quantizer)
        self.input_quantizer = copy.deepcopy(input_quantizer)
        told, tell = self.input_channels(), getattr(self.input_quantizer, "fit_inputs_", None)
        if told is not None and callable(tell):
            tell(*told)
        for quantizer in self._quantizers():
            quantizer.to(device=self.weight.device, dtype=self.weight.dtype)
        self.register_buffer("scale", torch.empty((), dtype=self.weight.dtype, device=self.weight.device))
        self._start_()
        self.cached_weight = None
        self.ranked_ahead = None

    def to_filters(self, weight: Tensor) -> Tensor:
        """The weight with the filter as first axis."""
        return weight

    def from_filters(self, filters: Tensor) -> Tensor:
        """The inverse of :meth:`to_filters`."""
        return filters

    def input_channels(self) -> tuple[int, int] | None:
        """How many channels flow in, and along which axis, counted from the last; None where the layer cannot say.

        An input quantizer with a ``fit_inputs_(channels, axis)`` is told.
        """
        return None

    def latents(self) -> Tensor:
        """The latents as they are now, filter first, without gradient."""
        with parametrization_in_eval(self):
            weight = self.weight.detach()
        if hasattr(weight, "full_tensor"):  # torch's DTensor
            raise ValueError(
                "the latents are shared out among processes: call unshard() on every module that fully_shard was "
                "given, ask again, then reshard()"
            )
        return self.to_filters(weight)

    def binary_weight(self) -> Tensor:
        """``scale · symbols``, joined to the latents by the quantizer's gradient: what the layer multiplies with.

        It lies in memory as the latents do, so a model in ``channels_last`` has nothing to convert at each step.
        """
        if self.training and self.ranked_ahead is not None:
            scaled_symbols = torch.ops.equalbits.symbols_ahead(self.weight.detach(), *self.ranked_ahead)
            return F.surrogate(self.weight, scaled_symbols, self.scale)
        weight = self.weight  # read once: a parametrization computes it
        if not self.training and is_plain_execution():
            sources = find_sources(self, weight)
            if sources is not None:
                return lookup_weight(self, sources)
            self.cached_weight = None
        return self._scale_symbols(weight, self.weight_quantizer(self.to_filters(weight)), self.scale)

    def quantize_weight(self, tensors: dict[str, Tensor]) -> Tensor:
        """Return :meth:`binary_weight` with these tensors in place of the layer's own, by name."""
        own = {name.removeprefix("weight_quantizer."): tensor for name, tensor in tensors.items() if "." in name}
        values = functional_call(self.weight_quantizer, own, (self.to_filters(tensors["weight"]),))
        return self._scale_symbols(tensors["weight"], values, tensors["scale"])

    def _scale_symbols(self, weight: Tensor, values: Tensor, scale: Tensor) -> Tensor:
        return _laid_out_like(weight, self.from_filters(values) * scale)

    def symbols(self) -> Tensor:
        """The symbols of the latents as they are now, filter first, without gradient."""
        filters = self.latents()
        return _laid_out_like(filters, self.weight_quantizer.symbols(filters))

    def _start_(self) -> None:
        self.scale.detach().fill_(self.weight_quantizer.initial_scale(self._connections()))
        if self.init == "kaiming":
            nn.init.normal_(self.weight, std=math.sqrt(2 / self._connections()))
        weight = self.weight.detach()
        filters = self.to_filters(weight)
        fit_(self.weight_quantizer, filters)
        if filters is not weight:  # a layer that keeps its axes in another order may have given a copy
            weight.copy_(self.from_filters(filters))

    def _quantizers(self) -> list[nn.Module]:
        return [each for each in (self.weight_quantizer, self.input_quantizer) if each is not None]

    def _connections(self) -> int:
        """``D``, how many weights a filter has."""
        return math.prod(self.to_filters(self.weight.detach()).shape[1:])

    def reset_parameters(self) -> None:
        """Start latents, bias, scale and quantizers as a new layer does; call it after ``to_empty`` on ``meta`` models.

        A quantizer of one's own that holds tensors starts them in ``fit_``, or in a ``reset_parameters``.
        """
        super().reset_parameters()  # type: ignore[misc]
        if "weight_quantizer" in self._modules:  # torch's constructor calls this before the layer is binary
            for quantizer in self._quantizers():
                start_(quantizer)
            self._start_()

    def train(self, mode: bool = True) -> Self:
        """Set the mode and clear the weight cache."""
        self.cached_weight = None
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.cached_weight = None  # frees its memory
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def quantize_input(self, inputs: Tensor) -> Tensor:
        """The input as the layer sees it."""
        return inputs if self.input_quantizer is None else self.input_quantizer(inputs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # The checkpoint of a real layer knows no scale and no quantizer. They stay as they are, so that it loads too.
        of_real_layer = prefix + "scale" not in state_dict
        weight = state_dict.get(prefix + "weight")
        fits = weight is not None and weight.shape == self.weight.shape  # where it does not, torch refuses it all
        if of_real_layer or (fits and self._is_anothers(state_dict[prefix + "scale"])):
            state_dict[prefix + "scale"] = self.scale
        super()._load_from_state_dict(state_dict, prefix, *args)
        if self.scale.is_meta and not self.weight.is_meta:  # a model made on ``meta`` that took the weights over
            self._leave_meta_()
        if of_real_layer:
            for name, value in self.state_dict(keep_vars=True).items():
                if name.startswith(("weight_quantizer.", "input_quantizer.")):
                    state_dict.setdefault(prefix + name, value)

    def _is_anothers(self, scale: Tensor) -> bool:
        """Whether a checkpoint's scale is what another method starts with; warn where it is not what this one does."""
        comparable = scale.shape == self.scale.shape == () and scale.is_floating_point() and not scale.is_meta
        if not comparable or isinstance(self.scale, nn.Parameter):
            return False
        rounding = 4 * max(torch.finfo(tensor.dtype).eps for tensor in (scale, self.scale))
        connections, method = self._connections(), type(self.weight_quantizer).__name__
        start = self.weight_quantizer.initial_scale(connections)
        untouched = self.scale.is_meta or math.isclose(self.scale, start, rel_tol=rounding)
        if not untouched or math.isclose(scale, start, rel_tol=rounding):
            return False
        others = any(math.isclose(scale, each, rel_tol=rounding) for each in (1.0, math.sqrt(2 / connections)))
        what = "it is another method's, and the layer keeps its own" if others else "it is taken all the same"
        warnings.warn(
            f"a checkpoint's scale is not what {method} starts with: {what}; set layer.scale if that is wrong",
            stacklevel=2,
        )
        return others

    def _leave_meta_(self) -> None:
        """Start scale and quantizers where the weights are; what a checkpoint knows of them it brings afterwards."""
        self.scale = torch.empty_like(self.scale, device=self.weight.device)
        self.scale.fill_(self.weight_quantizer.initial_scale(self._connections()))
        for quantizer in self._quantizers():
            quantizer.to_empty(device=self.weight.device)
            start_(quantizer)
        fit_(self.weight_quantizer, self.to_filters(self.weight.detach()).clone())  # the weights are the checkpoint's

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "cached_weight": None, "ranked_ahead": None}  # type: ignore[no-untyped-call]


def check_quantizers(weight_quantizer: object, input_quantizer: object) -> None:
    """Refuse what is not a quantizer; a class where an object should be is the usual slip."""
    _check_kind("weight_quantizer", weight_quantizer, WeightQuantizer, "BiHalf()")
    if input_quantizer is not None:
        _check_kind("input_quantizer", input_quantizer, nn.Module, "SignActivation()")


def _check_kind(name: str, given: object, kind: type[nn.Module], example: str) -> None:
    if not isinstance(given, kind):
        what = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
        raise ValueError(f"{name} is {what}: give a {kind.__name__}, as in {name}={example}")


def _laid_out_like(reference: Tensor, tensor: Tensor) -> Tensor:
    """``tensor`` in ``channels_last`` where ``reference`` is, untouched elsewhere."""
    if reference.dim() != 4 or reference.is_contiguous():
        return tensor
    if not reference.is_contiguous(memory_format=torch.channels_last):
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)
