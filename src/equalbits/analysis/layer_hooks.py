"""Find binary layers, and observe the calls of layers without changing the model."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from equalbits.nn import BinaryLayer, check_module, evaluation_mode

#: Called for each call of a layer with its name, the layer, its first input tensor and its output.
Observer = Callable[[str, nn.Module, Tensor | None, object], None]


def binary_layers(model: nn.Module) -> dict[str, BinaryLayer]:
    """Return the binary layers of a model by name, in module order; raise where there is none."""
    check_module(model)
    found = {name: module for name, module in model.named_modules() if isinstance(module, BinaryLayer)}
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no binary layer: make some with equalbits.binarize_(model, BiHalf())"
        )
    return found


@contextmanager
def observe_calls(model: nn.Module, layers: Mapping[str, nn.Module], observer: Observer) -> Iterator[None]:
    """Call ``observer`` for every call of ``layers`` inside the ``with``, in eval mode without gradients.

    Afterwards the model is unchanged: hooks removed, each module in its previous mode, random state restored.
    """

    def hook_for(name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, args: object, kwargs: object, output: object) -> None:
            if layer is layers[name]:  # a binary layer shares its hooks with the real layer that it replaced
                observer(name, layer, first_tensor([args, kwargs]), output)

        return hook

    cuda = sorted({parameter.device.index or 0 for parameter in model.parameters() if parameter.is_cuda})
    with ExitStack() as hooks, evaluation_mode(model), torch.no_grad(), torch.random.fork_rng(devices=cuda):
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(hook_for(name), with_kwargs=True))
        yield


def device_and_dtype(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Return the device and dtype that inputs of the model need."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.get_default_dtype()


def first_tensor(value: object) -> Tensor | None:
    """Return a tensor itself, or the first one in nested lists, tuples and dicts."""
    return next((leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)), None)
