"""Cache of a layer's scaled binary weight in eval mode on a CPU: one tensor of the weight's size.

A cached weight is valid while every tensor it was computed from is the same object, in the same memory, with the same
version counter, and every setting of the quantizer is unchanged. Torch increments a tensor's version counter at each
in-place operation. It does not count writes through ``.data``, NumPy arrays, collectives or fused optimizers. A
backward pass through the weight, ``train()`` and ``eval()`` therefore clear the cache, and it stays empty where another
process may write: in shared memory and while a process group is initialized.
"""

import enum
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from equalbits.nn.binary_layer import BinaryLayer


class Sources(NamedTuple):
    """All that a binary weight is computed from: tensors by name, and the settings of the quantizer."""

    tensors: dict[str, Tensor]
    settings: list[object]


class CachedWeight(NamedTuple):
    """A binary weight, its sources, and the state of their memory before it was computed."""

    value: Tensor
    value_version: int
    sources: Sources
    aliases: list[Tensor]  # keep the memory allocated, so that no other tensor gets the same address
    versions: list[int]

    def is_valid(self, sources: Sources) -> bool:
        """Return whether ``sources`` are those the weight was computed from, unchanged, and nobody wrote to it."""
        if self.value._version != self.value_version or self.sources.settings != sources.settings:
            return False
        then = zip(self.sources.tensors.values(), self.aliases, self.versions, strict=True)
        return self.sources.tensors.keys() == sources.tensors.keys() and all(
            now is tensor and now._version == version and now.dtype == alias.dtype and now.is_set_to(alias)
            for now, (tensor, alias, version) in zip(sources.tensors.values(), then, strict=True)
        )


def lookup_weight(layer: "BinaryLayer", sources: Sources) -> Tensor:
    """Return the layer's binary weight, quantized only if the cache is not valid, with gradients to ``sources``."""
    cached = layer.cached_weight
    if cached is None or not cached.is_valid(sources):
        layer.cached_weight = None  # frees its memory
        tensors = sources.tensors.values()
        # Taken before quantizing: a write by another thread in between then makes the result invalid.
        aliases, versions = [tensor.detach() for tensor in tensors], [tensor._version for tensor in tensors]
        with torch.inference_mode(False), torch.no_grad():  # usable in a later pass with gradients
            value = layer.quantize_weight(sources.tensors)
        cached = layer.cached_weight = CachedWeight(value, value._version, sources, aliases, versions)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in sources.tensors.values()):
        return _DeferredGradient.apply(layer, cached, *sources.tensors.values())  # type: ignore[no-any-return, no-untyped-call]
    return cached.value


class _DeferredGradient(torch.autograd.Function):
    """Return the cached weight; quantize again in the backward pass, which needs the quantizer's gradient."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def forward(ctx: Any, layer: "BinaryLayer", cached: CachedWeight, *tensors: Tensor) -> Tensor:
        ctx.layer, ctx.sources = layer, cached.sources
        ctx.save_for_backward(*tensors)
        return cached.value.detach()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        layer: BinaryLayer = ctx.layer
        layer.cached_weight = None  # an optimizer may step next, and a fused one leaves version counters as they are
        if _quantizer_sources(layer.weight_quantizer).settings != ctx.sources.settings:
            raise RuntimeError("the weight quantizer was changed between forward and backward: change it afterwards")
        wanted = dict(zip(ctx.sources.tensors, ctx.needs_input_grad[2:], strict=True))
        tensors = {
            # A hook on saved tensors, as of activation checkpointing, may return copies without gradient.
            name: tensor.detach().requires_grad_() if wanted[name] and not tensor.requires_grad else tensor
            for name, tensor in zip(wanted, ctx.saved_tensors, strict=True)
        }
        inputs = {name: tensor for name, tensor in tensors.items() if wanted[name]}
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            weight = layer.quantize_weight(tensors)
        found = torch.autograd.grad(
            weight, list(inputs.values()), gradient, create_graph=create_graph, allow_unused=True
        )
        gradients = dict(zip(inputs, found, strict=True))
        return None, None, *map(gradients.get, tensors)


def find_sources(layer: "BinaryLayer", weight: Tensor) -> Sources | None:
    """Return all that the binary weight depends on, or None if part of it can change unnoticed."""
    if type(weight) is not nn.Parameter or not _counts_writes(weight):
        return None
    if torch.distributed.is_available() and torch.distributed.is_initialized():  # collectives may write
        return None
    quantizer = layer.weight_quantizer
    if any(module._forward_hooks or module._forward_pre_hooks for module in quantizer.modules()):
        return None
    tensors, settings = _quantizer_sources(quantizer)
    tensors |= {"weight": weight, "scale": layer.scale}
    if not all(isinstance(setting, _IMMUTABLE) for setting in settings):
        return None
    return Sources(tensors, settings) if all(map(_counts_writes, tensors.values())) else None


def _quantizer_sources(quantizer: nn.Module) -> Sources:
    tensors: dict[str, Tensor] = {}
    settings: list[object] = [torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")]
    for prefix, module in quantizer.named_modules(prefix="weight_quantizer"):
        for held in (module._parameters, module._buffers):
            tensors |= {f"{prefix}.{name}": tensor for name, tensor in held.items() if tensor is not None}
        settings += (prefix, type(module))
        for name, value in vars(module).items():
            if name not in _TORCH_ATTRIBUTES:
                settings += (name, value)
    return Sources(tensors, settings)


#: Attributes that torch keeps in every module. All others of a quantizer are its settings, and so is its mode.
_TORCH_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}
_IMMUTABLE = (bool, int, float, str, bytes, type(None), type, enum.Enum, torch.dtype, torch.device)
_CPU = torch.device("cpu")


def _counts_writes(tensor: Tensor) -> bool:
    """Return whether a tensor is an ordinary one on the CPU, whose version counter this process alone moves."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.device == _CPU and tensor.layout == torch.strided
    return plain and not tensor.is_inference() and not tensor.untyped_storage().is_shared()
