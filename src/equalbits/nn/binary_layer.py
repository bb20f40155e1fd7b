"""Base class of all binary layers: real latents in ``weight``, a quantizer, and a scale.

The layer's ``weight`` holds the real latents, so optimizers, ``state_dict`` and checkpoints of the real layer keep
working. The layer multiplies with ``scale · quantizer(weight)``.
"""

import copy
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from equalbits import functional as F
from equalbits.nn.backward_updates import through_gate
from equalbits.nn.input_quantizers.sign import SignActivation
from equalbits.nn.methods.bihalf import BiHalf
from equalbits.nn.quantizer import WeightQuantizer, check_choice, is_hooked, refit_, reset_
from equalbits.nn.state_loading import LoadableLayer
from equalbits.nn.weight_cache import find_sources, lookup_weight

#: State of a layer that its copies start without.
UNCOPIED = ("cached_weight", "ranked_ahead", "update_gate")


class BinaryLayer(LoadableLayer):
    """Base class of all binary layers. A custom layer calls :meth:`make_binary_`, and defines ``forward``."""

    init: str
    input_is_checked: bool = False
    ranked_ahead: tuple[int, torch.dtype] | None  # layer number and dtype, set by equalbits.nn.rank_ahead
    update_gate: Tensor | None  # set by equalbits.nn.backward_updates

    def make_binary_(
        self, weight_quantizer: WeightQuantizer | None, input_quantizer: nn.Module | None, init: str = "torch"
    ) -> None:
        """Attach copies of the quantizers, and initialize scale and latents."""
        weight_quantizer = BiHalf() if weight_quantizer is None else weight_quantizer
        check_quantizers(weight_quantizer, input_quantizer)
        check_choice("init", init, ("torch", "kaiming"))
        self.init = init
        if self._connections() == 0:
            raise ValueError(f"weight has shape {tuple(self.weight.shape)}: a filter needs at least one connection")
        self.weight_quantizer = copy.deepcopy(weight_quantizer)
        self.input_quantizer = copy.deepcopy(input_quantizer)
        channels, fit_inputs = self.input_channels(), getattr(self.input_quantizer, "fit_inputs_", None)
        if channels is not None and callable(fit_inputs):
            fit_inputs(*channels)
        for quantizer in self._quantizers():
            quantizer.to(device=self.weight.device, dtype=self.weight.dtype)
        device = torch.device("cpu") if self.weight.is_meta else self.weight.device
        self.register_buffer("scale", torch.empty((), dtype=self.weight.dtype, device=device))
        self._initialize_()
        self.awaits_weights = self.weight.is_meta
        self.cached_weight = None
        self.ranked_ahead = None
        self.update_gate = None

    def from_filters(self, filters: Tensor) -> Tensor:
        """Invert :meth:`to_filters`."""
        return filters

    def input_channels(self) -> tuple[int, int] | None:
        """Return the number of input channels and their axis (negative), or None if unknown.

        They are the arguments of the input quantizer's ``fit_inputs_(channels, axis)``.
        """
        return None

    def latents(self) -> Tensor:
        """Return the current latents, filter first, without gradient."""
        with parametrization_in_eval(self):
            weight = self.weight.detach()
        if hasattr(weight, "full_tensor"):  # torch's DTensor
            raise ValueError(
                "the latents are sharded: call unshard() on every module passed to fully_shard, repeat the call, then "
                "reshard()"
            )
        return self.to_filters(weight)

    def binary_weight(self) -> Tensor:
        """Return the weight the layer multiplies with: ``scale · quantizer(latents)``, with its gradient.

        It has the memory format of the latents, so ``channels_last`` models need no conversion. In eval mode it may be
        the cached tensor: clone it before writing to it.
        """
        if self.training and self.ranked_ahead is not None:
            scaled_symbols = torch.ops.equalbits.symbols_ahead(self.weight.detach(), *self.ranked_ahead)
            if self.update_gate is not None:
                return through_gate(self.update_gate, scaled_symbols)
            return F.surrogate(self.weight, scaled_symbols, self.scale)
        symbols = self.scaled_symbols()
        if symbols is not None:
            return F.with_gradient(symbols)
        weight = self.weight  # read once: a parametrization computes it
        if not self.training and F.is_plain_execution():
            sources = find_sources(self, weight)
            if sources is not None:
                return lookup_weight(self, sources)
            self.cached_weight = None
        return self._scaled(self.weight_quantizer(self.to_filters(weight)), self.scale, weight)

    def scaled_symbols(self, *, autocast: bool = False) -> F.ScaledSymbols | None:
        """Return the weight in training in plain execution, if its gradient is that of the latents times the scale.

        It takes fewer operations than :meth:`binary_weight`, of which it is a part. With ``autocast`` it is cast as
        autocast would.
        """
        weight, scale = self._parameters.get("weight"), self.scale
        if not self.training or self.ranked_ahead is not None or weight is None or scale.requires_grad:
            return None
        if not (F.is_plain(weight) and weight.dtype == scale.dtype and self.weight_quantizer.passes_gradient()):
            return None
        if getattr(self.binary_weight, "__func__", None) is not BinaryLayer.binary_weight:
            return None
        dtype = F.autocast_dtype(weight) if autocast else weight.dtype
        values = self.weight_quantizer.scaled_symbols(self.to_filters(weight.detach()), scale, dtype)
        return F.ScaledSymbols(_in_format_of(weight, self.from_filters(values)), weight, scale)

    def quantize_weight(self, tensors: dict[str, Tensor]) -> Tensor:
        """Return :meth:`binary_weight` with these tensors in place of the layer's own, by name."""
        own = {name.removeprefix("weight_quantizer."): tensor for name, tensor in tensors.items() if "." in name}
        values = functional_call(self.weight_quantizer, own, (self.to_filters(tensors["weight"]),))
        return self._scaled(values, tensors["scale"], tensors["weight"])

    def _scaled(self, values: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
        return _in_format_of(weight, self.from_filters(values) * scale)

    def symbols(self) -> Tensor:
        """Return the symbols of the current latents, filter first, without gradient."""
        filters = self.latents()
        return _in_format_of(filters, self.weight_quantizer.symbols(filters))

    def _initialize_(self) -> None:
        self.scale.detach().fill_(self.initial_scale())
        if self.init == "kaiming":
            nn.init.normal_(self.weight, std=math.sqrt(2 / self._connections()))
        weight = self.weight.detach()
        filters = self.to_filters(weight)
        refit_(self.weight_quantizer, filters)
        if filters is not weight:  # to_filters may return a copy
            weight.copy_(self.from_filters(filters))

    def reset_parameters(self) -> None:
        """Initialize latents, bias, scale and quantizers; call it after ``to_empty`` on a ``meta`` model.

        A custom quantizer initializes its tensors in ``fit_`` or in ``reset_parameters``.
        """
        super().reset_parameters()  # type: ignore[misc]
        if "weight_quantizer" in self._modules:  # torch's constructor calls this before the layer is binary
            for quantizer in self._quantizers():
                reset_(quantizer)
            self._initialize_()
            self.awaits_weights = False

    def quantize_input(self, inputs: Tensor) -> Tensor:
        """Return the quantized input; the input itself if there is no input quantizer."""
        if self.input_quantizer is None:
            return inputs
        quantized: Tensor = self.input_quantizer(inputs)
        if self.training and not self.input_is_checked and F.is_plain_execution():
            self._check_input(inputs, quantized)
        return quantized

    def quantize_as_bits(self, inputs: Tensor) -> tuple[Tensor, "F.SignBits | None"]:
        """Return :meth:`quantize_input`, and its bits where they take no more than a few operations."""
        quantizer = self.input_quantizer
        is_sign = type(quantizer) is SignActivation and quantizer.estimator == "clipped"
        if not (is_sign and torch.is_grad_enabled() and F.is_plain(inputs) and inputs.is_floating_point()):
            return self.quantize_input(inputs), None
        own = getattr(self.quantize_input, "__func__", None) is BinaryLayer.quantize_input
        if not own or is_hooked(cast("SignActivation", quantizer)) or not F.BitLayout.of(inputs).fits(inputs):
            return self.quantize_input(inputs), None
        signs, bits = F.sign_as_bits(inputs)
        if self.training and not self.input_is_checked:
            self._check_input(inputs, signs)
        return signs, bits

    def _check_input(self, inputs: Tensor, quantized: Tensor) -> None:
        """Warn once if the first input in training is constant."""
        if quantized.is_cuda and torch.cuda.is_current_stream_capturing():  # cannot be read now
            return
        self.input_is_checked = True
        if loses_input(inputs.detach(), quantized.detach()):
            warnings.warn(
                "a binary layer's input is constant, as the sign of a ReLU's output is: the layer learns nothing; "
                "equalbits.adapt_for_binary_inputs_(model, example) replaces the ReLUs before binary inputs, and "
                "equalbits.summarize(model, example) names the layers",
                stacklevel=4,
            )

    def operand(self, quantized: Tensor, bits: F.SignBits | None) -> tuple[Tensor | F.ScaledSymbols, bool | F.SignBits]:
        """Return the weight to multiply a quantized input with, and whether to keep that as bits: True or its bits.

        It is kept so if the input quantizer states that it returns ±1, and has no hooks that could change it.
        """
        symbols, quantizer = self.scaled_symbols(autocast=True), self.input_quantizer
        weight = self.binary_weight() if symbols is None else symbols.latents
        are_signs = getattr(quantizer, "returns_signs", False) and not cast("nn.Module", quantizer)._forward_hooks
        signs = (bits or True) if are_signs and F.saves_signs(quantized, weight) else False
        return symbols or weight, signs

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), **dict.fromkeys(UNCOPIED)}  # type: ignore[no-untyped-call]


def layers_by_name(model: nn.Module) -> dict[str, BinaryLayer]:
    """Return the binary layers of a model; a layer used in several places once."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, BinaryLayer)}


@contextmanager
def parametrization_in_eval(layer: nn.Module) -> Iterator[None]:
    """Put the parametrization of ``weight`` in eval mode: in training, reading it updates spectral norm's state."""
    steps = layer.parametrizations["weight"] if parametrize.is_parametrized(layer, "weight") else ()  # type: ignore[index]
    with evaluation_mode(*steps):
        yield


@contextmanager
def evaluation_mode(*models: nn.Module) -> Iterator[None]:
    """Put models in evaluation mode; afterwards restore the mode of every module, which may differ from its model's."""
    modes = {module: module.training for model in models for module in model.modules()}
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            if module.training != training:
                module.train(training)


def check_module(model: object) -> None:
    """Raise unless ``model`` is a module; passing the directory of a run instead is a common mistake."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"the model is a {type(model).__name__}: {_module_hint(model)}")


def _module_hint(model: object) -> str:
    if isinstance(model, str | os.PathLike):
        packed = str(model).startswith("zoo:") or str(model).endswith(".ebits")
        return (
            f"load it with eb.load_packed({str(model)!r})"
            if packed
            else f"load it with eb.load_run({str(model)!r}).model"
        )
    if isinstance(getattr(model, "model", None), nn.Module):
        return "pass its .model"
    return "pass a torch.nn.Module"


def check_quantizers(weight_quantizer: object, input_quantizer: object) -> None:
    """Raise unless both are quantizers; passing the class instead of an instance is a common mistake."""
    checks: list[tuple[str, object, type[nn.Module], str]]
    checks = [("weight_quantizer", weight_quantizer, WeightQuantizer, "BiHalf()")]
    if input_quantizer is not None:
        checks += [("input_quantizer", input_quantizer, nn.Module, "SignActivation()")]
    for name, given, kind, example in checks:
        if not isinstance(given, kind):
            found = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
            raise ValueError(f"{name} is {found}: pass a {kind.__name__}, as in {name}={example}")


def loses_input(inputs: Tensor, quantized: Tensor) -> bool:
    """Return whether inputs differ and their quantized values do not, in numbers that exclude chance."""
    if quantized.numel() < 256:
        return False
    return bool((quantized == quantized.flatten()[0]).all()) and bool((inputs != inputs.flatten()[0]).any())


def _in_format_of(reference: Tensor, tensor: Tensor) -> Tensor:
    """Return ``tensor`` in ``channels_last`` if ``reference`` is, unchanged otherwise."""
    strided = reference.dim() == 4 and not reference.is_contiguous()
    if strided and reference.is_contiguous(memory_format=torch.channels_last):
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor
