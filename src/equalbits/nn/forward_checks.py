"""Run a model on an example and observe two silent mistakes: constant binary inputs, and weights read past a layer.

The sign of a ReLU's output is always +1: a layer that takes it as its binary input gets no information. And a function
that reads ``layer.weight`` instead of calling the layer computes with real latents.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from equalbits._text import bounded
from equalbits.nn.binary_layer import BinaryLayer, evaluation_mode, loses_input

#: A batch of inputs, several inputs, or inputs by name: ``model(example)``, ``model(*example)``, ``model(**example)``.
Example = Tensor | tuple[object, ...] | Mapping[str, object]

#: Activations that are replaced before a binary input: their output has no negative values.
RECTIFIERS: tuple[type[nn.Module], ...] = (nn.ReLU, nn.ReLU6)


@dataclass
class Observed:
    """Layers with a constant binary input, each with the rectifiers that made it so, and layers read from outside."""

    constant: dict[nn.Module, frozenset[nn.Module]] = field(default_factory=dict)
    read: dict[nn.Module, None] = field(default_factory=dict)


class _Watch(TorchFunctionMode):
    """Follows tensors without negative values from the rectifiers that made them, and reads of layers' weights.

    ``inside`` is the stack of the layers being called. ``owners`` are the layers that have a weight.
    """

    def __init__(self, owners: Mapping[int, list[nn.Module]]) -> None:
        super().__init__()
        self.owners, self.inside, self.observed = owners, list[nn.Module](), Observed()

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        result = func(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if made:
            for tensor in given:
                owners = self.owners.get(id(tensor), ())
                if not any(owner in self.inside for owner in owners):
                    self.observed.read |= dict.fromkeys(owners)
        if sources := frozenset[nn.Module]().union(*map(_sources, given)):
            for tensor in made:
                follow = tensor.is_floating_point() and not bool((tensor < 0).any())
                tensor._rectified_by = sources if follow else frozenset()  # type: ignore[attr-defined]
        return result

    def enter(self, layer: nn.Module, *_: object) -> None:
        """Push a layer that is being called."""
        self.inside.append(layer)

    def leave(self, layer: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
        """Pop a layer; note its constant binary input, or mark its output as rectified."""
        if isinstance(layer, RECTIFIERS) and isinstance(output, Tensor):
            output._rectified_by = frozenset([layer])  # type: ignore[attr-defined]
        given = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)), None)
        is_binary = isinstance(layer, BinaryLayer) and layer.input_quantizer is not None
        if is_binary and given is not None and loses_input(given, layer.quantize_input(given)):  # type: ignore[operator]
            self.observed.constant[layer] = self.observed.constant.get(layer, frozenset()) | _sources(given)
        self.inside.pop()


_MULTIPLIERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d, BinaryLayer)


@contextmanager
def watch_calls(model: nn.Module) -> Iterator[Observed]:
    """Yield what is observed of ``model`` inside the ``with``. It must run in eval mode, without gradients."""
    layers = [module for module in model.modules() if isinstance(module, (*_MULTIPLIERS, *RECTIFIERS))]
    owners: dict[int, list[nn.Module]] = {}
    for layer in layers:
        if isinstance(weight := layer._parameters.get("weight"), Tensor):
            owners.setdefault(id(weight), []).append(layer)
    watch = _Watch(owners)
    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(watch.enter))
            hooks.enter_context(layer.register_forward_hook(watch.leave, with_kwargs=True))
        with watch:
            yield watch.observed


def watch_forward(model: nn.Module, example: Example) -> Observed:
    """Call ``model`` on ``example`` in eval mode without gradients and return what was observed; nothing is changed."""
    with watch_calls(model) as observed:
        run_in_eval(model, example)
    return observed


def run_in_eval(model: nn.Module, example: Example) -> None:
    """Call ``model`` on ``example`` in eval mode without gradients, and restore its modes."""
    given = example.values() if isinstance(example, Mapping) else example if isinstance(example, tuple) else [example]
    if all(leaf is None or isinstance(leaf, int | float) for leaf in tree_leaves(list(given))):  # a shape, or nothing
        raise ValueError(f"example={bounded(repr(example))}: give a batch of inputs, as in torch.randn(1, 3, 32, 32)")
    with evaluation_mode(model), torch.no_grad():
        if isinstance(example, Mapping):
            model(**example)
        else:
            model(*example) if isinstance(example, tuple) else model(example)


def _sources(tensor: Tensor) -> frozenset[nn.Module]:
    found: frozenset[nn.Module] = getattr(tensor, "_rectified_by", frozenset())
    return found
