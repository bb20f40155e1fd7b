"""Mode of execution: plain, compiled, traced, or transformed by ``torch.func``; by kernels on a GPU, or without."""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def in_forward_mode() -> bool:
    """Return True while torch differentiates in forward mode, as ``torch.func.jvp`` does.

    Our autograd functions have no ``jvp``, since torch.compile rejects functions that have one.
    """
    return forward_ad._current_level >= 0


def is_plain_execution() -> bool:
    """Return whether operations run as written, not compiled, traced or transformed: tensors then stand for others."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or in_forward_mode()
    )


def is_plain(tensor: Tensor) -> bool:
    """Return whether plain execution computes with this tensor, so that code may call kernels directly.

    The Python code around a custom operator takes longer than a small layer.
    """
    return type(tensor) in (Tensor, torch.nn.Parameter) and not tensor.is_meta and is_plain_execution()


def kernels_for(name: str, tensor: Tensor) -> ModuleType | None:
    """Import the kernels called ``name`` when first needed; None on another device or without Triton."""
    if tensor.device.type != "cuda":
        return None
    try:
        return import_module(f"equalbits.functional.kernels.{name}")
    except ImportError:
        return None


def plain_twin(forward: Callable[..., object], setup: Callable[..., None], backward: Callable[..., object]) -> Any:
    """Return an autograd function of these parts for plain execution alone.

    ``apply`` of a function with ``setup_context`` inspects its signature each time, longer than a small layer takes.
    """

    def forward_with_context(ctx: object, *inputs: object) -> object:
        output = forward(*inputs)
        setup(ctx, inputs, output)
        return output

    methods = {"forward": staticmethod(forward_with_context), "backward": staticmethod(backward)}
    return type("PlainTwin", (torch.autograd.Function,), methods)
