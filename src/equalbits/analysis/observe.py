"""Finding binary layers, and looking on while a model answers, without leaving a trace in it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from equalbits.nn import BinaryLayer

#: What an onlooker is told of each call of a layer: its name, the layer, its input, its output.
Onlooker = Callable[[str, nn.Module, Tensor | None, Any], None]


def binary_layers(model: nn.Module) -> dict[str, BinaryLayer]:
    """The binary layers of a model by name, in its own order; a model without any is refused."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, BinaryLayer)}
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no binary layer: make some with equalbits.binarize_(model, BiHalf())"
        )
    return found


@contextmanager
def observing(model: nn.Module, layers: Mapping[str, nn.Module], onlooker: Onlooker) -> Iterator[None]:
    """Let ``onlooker`` see every call of ``layers`` inside the block, where ``model`` is in eval mode without gradient.

    Afterwards the model is as it was: no hook, each module in its own mode, the random state untouched.
    """

    def tell(name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if layer is layers[name]:  # the real layer that a binary one stands for shares its hooks
                onlooker(name, layer, _first_tensor([args, kwargs]), output)

        return hook

    modes = {module: module.training for module in model.modules()}
    cuda = sorted({parameter.device.index or 0 for parameter in model.parameters() if parameter.is_cuda})
    handles = []
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=cuda):
            model.eval()
            handles = [layer.register_forward_hook(tell(name), with_kwargs=True) for name, layer in layers.items()]
            yield
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode


def device_and_dtype(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where a model's numbers live, and their type, for inputs made or moved for it."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.get_default_dtype()


def output_shape(output: Any) -> tuple[int, ...] | None:
    """The shape of what a layer gave; of its first tensor where it gave several."""
    tensor = _first_tensor(output)
    return None if tensor is None else tuple(tensor.shape)


def _first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return next((tensor for part in parts if (tensor := _first_tensor(part)) is not None), None)
