"""Run a packed network in torch, operation by operation in float32, for ``bench --torch``."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from equalbits.runtime import Network

Run = Callable[..., Tensor]


def torch_call(network: Network, images: NDArray[np.float32], threads: int) -> Callable[[], Tensor]:
    """Return a function that runs the batch once on ``threads`` threads, with all tensors prepared."""
    torch.set_num_threads(threads)
    parts = [_tensors(network, place) for place in range(len(network.operations))]
    given = torch.from_numpy(images)

    @torch.inference_mode()
    def call() -> Tensor:
        values = [given]
        for operation, tensors in zip(network.operations, parts, strict=True):
            run = _RUN[operation.kind]
            values.append(run(*(values[i] for i in operation.inputs), tensors=tensors, settings=operation.settings))
        return values[-1]

    return call


def _tensors(network: Network, place: int) -> dict[str, Tensor]:
    """Return an operation's tensors for torch: weights in full shape and scaled, vectors broadcast per channel."""
    operation, shape = network.operations[place], network.shapes[place + 1]
    arrays = {part: np.asarray(array) for part, array in network.arrays(operation).items()}
    tail = (1,) * (len(shape) - 1 - operation.settings.get("axis", 0))
    if "weight" in arrays:
        weight = arrays["weight"]
        weight = network.symbols(place) if weight.dtype == np.uint8 else weight
        scale = arrays.get("scale", np.ones(1)).reshape(-1, 1)
        flat = weight.reshape(len(weight), -1).astype(np.float32) * scale.astype(np.float32)
        inputs = network.shapes[operation.inputs[0]][0] // operation.settings.get("groups", 1)
        full = (len(flat), inputs, *operation.settings["kernel"]) if operation.kind == "conv" else flat.shape
        bias = {"bias": torch.tensor(arrays["bias"], dtype=torch.float32)} if "bias" in arrays else {}
        return {"weight": torch.from_numpy(flat.reshape(full)), **bias}
    return {
        part: torch.tensor(array, dtype=torch.float32).reshape(*array.shape[:-1], -1, *tail)
        for part, array in arrays.items()
    }


def _conv(x: Tensor, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Tensor:
    x, padding = _padded(x, settings["padding"], 0.0)
    rest = (settings["stride"], padding, settings["dilation"], settings["groups"])
    return functional.conv2d(x, tensors["weight"], tensors.get("bias"), *rest)


def _padded(x: Tensor, padding: tuple[int, int, int, int], value: float) -> tuple[Tensor, tuple[int, int]]:
    """Pad in advance where the sides differ: torch's own padding is symmetric."""
    top, bottom, left, right = padding
    if top == bottom and left == right:
        return x, (top, left)
    return functional.pad(x, (left, right, top, bottom), value=value), (0, 0)


def _max_pool(x: Tensor, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Tensor:
    x, padding = _padded(x, settings["padding"], -torch.inf)
    return functional.max_pool2d(x, settings["kernel"], settings["stride"], padding)


def _avg_pool(x: Tensor, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Tensor:
    x, padding = _padded(x, settings["padding"], 0.0)
    return functional.avg_pool2d(
        x, settings["kernel"], settings["stride"], padding, count_include_pad=settings["count_padding"]
    )


def _slice(x: Tensor, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Tensor:
    cuts = zip(settings["start"], settings["stop"], settings["step"], strict=True)
    return x[(slice(None), *(slice(*cut) for cut in cuts))]


def _pad(x: Tensor, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Tensor:
    pairs = zip(reversed(settings["before"]), reversed(settings["after"]), strict=True)
    return functional.pad(x, [side for pair in pairs for side in pair], value=settings["value"])


def _softmax(x: Tensor, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Tensor:
    if settings["causal"]:
        x = x.masked_fill(~torch.ones(x.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return x.softmax(settings["axis"] + 1)


def _norm(x: Tensor, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], *, centered: bool) -> Tensor:
    axis = settings["axis"] + 1
    x = x - x.mean(axis, keepdim=True) if centered else x
    x = x * torch.rsqrt(x.square().mean(axis, keepdim=True) + settings["eps"])
    return x * tensors.get("scale", 1.0) + tensors.get("bias", 0.0)


def _elementwise(function: Callable[[Tensor], Tensor]) -> Run:
    return lambda x, tensors, settings: function(x)


_ONE = torch.ones(())
_RUN: dict[str, Run] = {
    "conv": _conv,
    "linear": lambda x, tensors, settings: functional.linear(x, tensors["weight"], tensors.get("bias")),
    "affine": lambda x, tensors, settings: x * tensors["gain_shift"][0] + tensors["gain_shift"][1],
    "prelu": lambda x, tensors, settings: torch.where(x >= 0, x, x * tensors["slope"]),
    "relu": lambda x, tensors, settings: functional.relu(x),
    "clamp": lambda x, tensors, settings: x.clamp(settings["min"], settings["max"]),
    "sign": lambda x, tensors, settings: torch.where(x >= 0, _ONE, -_ONE),
    "quantize": lambda x, tensors, settings: (x * settings["gain"]).clamp(settings["min"], settings["max"]).round(),
    "add": lambda x, y, tensors, settings: x + y,
    "concat": lambda *parts, tensors, settings: torch.cat(parts, 1),
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "adaptive_avg_pool": lambda x, tensors, settings: functional.adaptive_avg_pool2d(x, settings["size"]),
    "flatten": lambda x, tensors, settings: x.flatten(1),
    "reshape": lambda x, tensors, settings: x.reshape(len(x), *settings["shape"]),
    "permute": lambda x, tensors, settings: x.permute(0, *(axis + 1 for axis in settings["axes"])),
    "channel_shuffle": lambda x, tensors, settings: functional.channel_shuffle(x, settings["groups"]),
    "slice": _slice,
    "pad": _pad,
    "softmax": _softmax,
    "layer_norm": partial(_norm, centered=True),
    "rms_norm": partial(_norm, centered=False),
    "embedding": lambda x, tensors, settings: functional.embedding(x.long(), tensors["table"].flatten(1)),
    "mul": lambda x, y, tensors, settings: x * y,
    "matmul": lambda x, y, tensors, settings: x @ y,
    "elu": lambda x, tensors, settings: functional.elu(x, settings["alpha"]),
    "silu": _elementwise(functional.silu),
    "gelu": _elementwise(functional.gelu),
    "gelu_tanh": _elementwise(partial(functional.gelu, approximate="tanh")),
    "mish": _elementwise(functional.mish),
    "softplus": _elementwise(functional.softplus),
    **{kind: _elementwise(getattr(torch, kind)) for kind in ("sigmoid", "tanh", "exp", "sqrt", "reciprocal")},
}
