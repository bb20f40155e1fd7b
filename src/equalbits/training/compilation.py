"""torch.compile for training: whether it works here, and a cache apart from that of other code."""

import importlib.util
import shutil
from collections.abc import Callable
from types import FunctionType
from typing import ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
R = TypeVar("R")


def can_compile() -> bool:
    """Return whether torch.compile has what it needs for a GPU: Triton, which in turn needs a C compiler."""
    compilers = ("cc", "gcc", "clang")
    return importlib.util.find_spec("triton") is not None and any(map(shutil.which, compilers))


def compile_separately(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function with a cache of its own.

    Dynamo caches by code object, and stops compiling one after a few models. A copy of the code object lets one process
    train any number of models, and leaves alone what the caller has compiled. It is freed with the function.
    """
    source = cast("FunctionType", function)
    copy = FunctionType(
        source.__code__.replace(), source.__globals__, source.__name__, source.__defaults__, source.__closure__
    )
    return torch.compile(cast("Callable[P, R]", copy), dynamic=False)
