"""Asking for symbols that something else finds before a layer needs them (:mod:`equalbits.nn.rank_ahead`)."""

import threading
from collections.abc import Callable

import torch
from torch import Tensor


class Finders(threading.local):
    """What finds symbols ahead and hands them out by number; each thread has its own, and the innermost is asked."""

    def __init__(self) -> None:
        self.stack: list[Callable[[int], Tensor]] = []


FINDERS = Finders()


@torch.library.custom_op("equalbits::symbols_ahead", mutates_args=())
def symbols_ahead(latents: Tensor, number: int, dtype: torch.dtype) -> Tensor:
    """The scaled symbols of these latents, found ahead; the current stream goes on once they are.

    An operator, so that a compiler leaves alone who waits for what. It may use the memory again that it gets, as with
    any result: what finds symbols ahead finds them anew for each step.
    """
    return FINDERS.stack[-1](number)


@symbols_ahead.register_fake
def _(latents: Tensor, number: int, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(latents, dtype=dtype)
