"""A copy of a model with every weight decided: what is traced, and what the packed answer is held against."""

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from equalbits.deploy.graph import PackError, as_array
from equalbits.deploy.verify_native import near
from equalbits.deploy.weights import BinaryWeights, binary_weights
from equalbits.nn import BinaryLayer

#: The most images of the example that the packed answer is checked on.
MOST_IMAGES = 8

#: What the buffer with a binary layer's weights is called.
FROZEN = "frozen_binary_weight"


@dataclass(frozen=True)
class Frozen:
    """The traced model, its binary layers by the name of the tensor they multiply with, and its answer to ``images``.

    The answer is the model's own, found before anything was frozen. Where the first image gets another one by itself
    than among the others, ``alone`` is the model traced on it.
    """

    program: ExportedProgram
    binary: dict[str, BinaryWeights]
    images: Tensor
    answer: Tensor
    alone: "Frozen | None" = None


def freeze(model: nn.Module, example: Tensor) -> Frozen:
    """Trace a copy of ``model`` in eval and float32 on the CPU; the model itself is left alone.

    Each binary layer's weights are found once and become a buffer, so that the trace has a plain convolution in its
    place, whatever the method; the layer's own forward still says how it pads and what becomes of its input.
    """
    if not isinstance(model, nn.Module):
        raise PackError(f"model is of type {type(model).__name__}: give an nn.Module")
    images = _check_example(example)
    kept = _copied(_unwrapped(model)).cpu().eval()
    for name, layer in kept.named_modules():  # asked of the copy: what computes a weight may change as it is asked
        if isinstance(layer, BinaryLayer) and bool(layer.weight.isnan().any()):
            raise PackError(f"layer {name!r} has latents that are nan: it was trained to nothing; train it again")
    dtypes = {p.dtype for p in kept.parameters() if p.is_floating_point()}
    if not dtypes <= {torch.float32, torch.float64}:
        kept, dtypes = kept.float(), set()  # the same weights: every half is a float32
    dtype = torch.float64 if dtypes == {torch.float64} else torch.float32
    with torch.no_grad():
        answer = _check_answer(_called(kept, images, dtype), len(images)).float()
        first = _answer_alone(kept, images[:1], dtype)
        binary = _freeze_layers(kept)
        program = _export(kept.float(), images)
        alone = None
        if first is not None and not near(as_array(first), as_array(answer[:1])):
            alone = Frozen(_export(kept, images[:1]), binary, images[:1], first)
    return Frozen(program, binary, images, answer, alone)


def _copied(model: nn.Module) -> nn.Module:
    """A copy of a model whose numbers are all there."""
    if isinstance(model, torch.jit.ScriptModule):
        raise PackError("model is a ScriptModule, which is not traced again: give the nn.Module that it was made from")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise PackError(f"{name!r} has no numbers before the first batch: call the model on one, then pack it")
        if tensor.is_meta:
            raise PackError(f"{name!r} is on the meta device, without numbers: load the model's state_dict first")
    try:
        with _CopyingNumbers():
            return copy.deepcopy(model)
    except Exception as error:  # whatever a module may hold
        line = " ".join(str(error).split())[:200]
        raise PackError(f"the model cannot be copied: {line}; take off it what its answer does not need") from error


class _CopyingNumbers(TorchFunctionMode):
    """Copies the numbers alone of a tensor that a gradient flows through, as a forward may leave one in its module.

    Torch refuses to copy such a tensor, wherever it lies: in a list, a dictionary or what else a module holds.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not Tensor.__deepcopy__ or args[0].is_leaf:
            return func(*args, **(kwargs or {}))
        tensor, known = args
        known[id(tensor)] = numbers = tensor.detach().clone()
        return numbers


def _called(model: nn.Module, images: Tensor, dtype: torch.dtype) -> Any:
    """The model's answer to a copy of the images: a forward may change what it is given."""
    return model(images.to(dtype, copy=True))


def _answer_alone(model: nn.Module, image: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The answer to one image; None where the model has none, as where it squeezes an axis of one away."""
    try:
        return _check_answer(_called(model, image, dtype), 1).float()
    except Exception:  # whatever a model's forward meets
        return None


def _freeze_layers(model: nn.Module) -> dict[str, BinaryWeights]:
    frozen: dict[int, BinaryWeights] = {}
    found = {}
    for name, layer in model.named_modules(remove_duplicate=False):
        if not isinstance(layer, BinaryLayer):
            continue
        if id(layer) not in frozen:
            frozen[id(layer)] = binary_weights(layer, name)
            weight = layer.binary_weight().detach().clone(memory_format=torch.contiguous_format)
            layer.register_buffer(FROZEN, weight)
            layer.binary_weight = _Reader(layer)  # type: ignore[method-assign]
        found[f"{name}.{FROZEN}" if name else FROZEN] = frozen[id(layer)]
    return found


class _Reader:
    """Reads a layer's frozen weights, in place of its ``binary_weight``."""

    def __init__(self, layer: BinaryLayer) -> None:
        self._layer = (layer,)  # not as an attribute of its own, which would make the layer a part of itself

    def __call__(self) -> Tensor:
        weight: Tensor = getattr(self._layer[0], FROZEN)
        return weight


def _export(model: nn.Module, images: Tensor) -> ExportedProgram:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, on its own tracing
            return torch.export.export(model, (images.clone(),), strict=False)
    except Exception as error:  # whatever a model's forward meets when it is traced
        line = " ".join(str(error).split())[:300]
        if "data-dependent" in line:
            line = f"its forward branches on numbers of the image, have it do the same with each ({line})"
        raise PackError(f"torch.export cannot trace the model: {line}") from error


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's and the parallel wrappers."""
    if hasattr(model, "_orig_mod"):
        return _unwrapped(model._orig_mod)  # type: ignore[arg-type]
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return _unwrapped(model.module)
    return model


def _check_example(example: Tensor) -> Tensor:
    is_plain = isinstance(example, Tensor) and example.layout == torch.strided and not example.is_meta
    if not is_plain or example.dim() != 4 or not example.numel() or not example.is_floating_point():
        what = f"{example.dtype} of {tuple(example.shape)}" if isinstance(example, Tensor) else type(example).__name__
        what += "" if is_plain or not isinstance(example, Tensor) else f", {example.layout} on {example.device}"
        raise PackError(
            f"example is {what}: give a batch of images as the model takes them, float of (batch, channel, row, "
            f"column); a model of plain features takes them as (batch, features, 1, 1) behind an nn.Flatten, one of "
            f"rows as (batch, channel, 1, column) behind an nn.Flatten(2)"
        )
    images = example.detach().to("cpu", torch.float32)[:MOST_IMAGES]
    if not bool(images.isfinite().all()):
        raise PackError(
            "example holds numbers that are not finite: signs would hide them; give images as the model takes"
        )
    # Two images at least: with one, an axis of the batch could not be told from any other of size 1.
    return images if len(images) > 1 else images.repeat(2, 1, 1, 1)


def _check_answer(answer: Any, images: int) -> Tensor:
    if not isinstance(answer, Tensor) or answer.dim() < 2 or len(answer) != images:
        what = f"a tensor of {tuple(answer.shape)}" if isinstance(answer, Tensor) else f"a {type(answer).__name__}"
        raise PackError(
            f"the model answers {images} images with {what}: a packed model gives one row of logits for each image; "
            f"pack a module whose forward returns that alone"
        )
    if not bool(answer.isfinite().all()):
        raise PackError("the model answers with numbers that are not finite: it was trained to nothing; train it again")
    return answer
