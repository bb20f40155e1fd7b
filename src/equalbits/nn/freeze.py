"""``freeze``: a copy of a model in plain torch layers, with the binary weights as their weights, for other tools."""

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from equalbits import functional as F
from equalbits._text import one_line
from equalbits.nn.binary_layer import UNCOPIED, BinaryLayer, check_module, layers_by_name
from equalbits.nn.layers import BinaryConv1d, BinaryConv2d, BinaryConvTranspose2d, BinaryLinear
from equalbits.nn.quantizer import InputQuantizer
from equalbits.nn.replace_modules import replace_modules

#: Plain class of each binary layer class.
_PLAIN_CLASSES: dict[type[nn.Module], type[nn.Module]] = {
    BinaryLinear: nn.Linear,
    BinaryConv1d: nn.Conv1d,
    BinaryConv2d: nn.Conv2d,
    BinaryConvTranspose2d: nn.ConvTranspose2d,
}
_HOOKS = tuple(name for name in vars(nn.Module()) if "hooks" in name)


def freeze(model: nn.Module) -> nn.Module:
    """Return a copy of ``model`` in eval mode whose binary layers are plain torch layers; the model stays unchanged.

    The weight of each is ``scale · quantizer(latents)``, fixed, without gradient. A layer with an input quantizer
    becomes ``nn.Sequential(input_quantizer, layer)``. On a CPU the outputs are those of the model to the bit.

    Tools that export a model, or that rebuild a layer from its ``.weight``, would use the latents of a binary layer.
    They are right after ``freeze``: ``torch.onnx.export``, ``openvino.convert_model``, ``torch.fx``, ``torch.jit``,
    torchao, and the reparameterization of timm.

    >>> model = nn.Sequential(BinaryLinear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> frozen = freeze(model)
    >>> type(frozen[0]).__name__, torch.equal(frozen[0].weight, model[0].binary_weight())
    ('Linear', True)
    """
    check_module(model)
    frozen = copy_model(model).eval()
    layers = {layer: name for name, layer in layers_by_name(frozen).items()}
    if not layers:
        raise ValueError(f"{type(model).__name__} has no binary layer to freeze: make some with equalbits.binarize_")
    made: dict[nn.Module, nn.Module] = {layer: _as_plain_layer(layer, name) for layer, name in layers.items()}
    replace_modules(frozen, made)
    return made.get(frozen, frozen)


class FrozenInput(nn.Module):
    """Input quantizer in eval mode, without gradient."""

    def __init__(self, quantizer: nn.Module) -> None:
        super().__init__()
        self.quantizer = quantizer

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the quantized inputs."""
        values: Tensor = self.quantizer.values(inputs)  # type: ignore[operator]
        return values


@torch.no_grad()
def _as_plain_layer(layer: BinaryLayer, name: str) -> nn.Module:
    """Return torch's layer with the binary weights of ``layer``, behind its input quantizer if it has one."""
    kind = parametrize.type_before_parametrizations(layer)
    if kind not in _PLAIN_CLASSES:
        raise ValueError(
            f"layer {name!r} is of class {kind.__name__}, which has no plain torch layer: replace it by a layer with "
            f"weight binary_weight() first"
        )
    try:
        F.check_finite(layer.latents())
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from error
    weight = nn.Parameter(layer.binary_weight().detach().clone(), requires_grad=False)
    plain = object.__new__(_PLAIN_CLASSES[kind])
    own = {"_parameters": {"weight": weight, "bias": layer.bias}, "_buffers": {}, "_modules": {}}
    plain.__dict__.update(layer.__dict__ | own)
    for attribute in ("init", *UNCOPIED, "_compiled_call_impl"):
        plain.__dict__.pop(attribute, None)
    quantizer = layer.input_quantizer
    if quantizer is None:
        return plain
    if isinstance(quantizer, InputQuantizer) and "values" in vars(type(quantizer)):  # not inherited: forward may differ
        quantizer = FrozenInput(quantizer)
    both = nn.Sequential(OrderedDict(input_quantizer=quantizer, layer=plain)).eval()
    for attribute in _HOOKS:  # of the binary layer: they see its input before it is quantized
        both.__dict__[attribute], plain.__dict__[attribute] = plain.__dict__[attribute], both.__dict__[attribute]
    return both


def copy_model(model: nn.Module) -> nn.Module:
    """Return a deep copy of a model whose tensors all have data, without the wrappers of torch.compile and DDP."""
    model = _unwrap(model)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(f"{name!r} is uninitialized: call the model on a batch first")
        if tensor.is_meta:
            raise ValueError(f"{name!r} is on the meta device, without data: load the model's state_dict first")
    try:
        with _CopyDetached():
            return copy.deepcopy(model)
    except Exception as error:  # a module may hold anything
        raise ValueError(
            f"the model cannot be copied: {one_line(error)}; remove attributes that its forward does not need"
        ) from error


class _CopyDetached(TorchFunctionMode):
    """Copies non-leaf tensors detached, as a forward may leave one on its module; torch refuses to copy those."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not Tensor.__deepcopy__ or args[0].is_leaf:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        memo[id(tensor)] = copied = tensor.detach().clone()
        return copied


def _unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside torch.compile's and the parallel wrappers."""
    if hasattr(model, "_orig_mod"):
        return _unwrap(model._orig_mod)  # type: ignore[arg-type]
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return _unwrap(model.module)
    return model
