"""Two optimizers as one: one for the bits, one for the real parameters."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


class Together(Optimizer):
    """Optimizers of different parameters that step, save and load as one.

    Groups and state are shared with the parts, so that what sets a learning rate or saves a state need not know them.

    >>> from equalbits.optim import Bop
    >>> bits, real = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(1))
    >>> both = Together(Bop([bits], gamma=1.0, tau=0.0), torch.optim.SGD([real], lr=0.5))
    >>> bits.grad, real.grad = torch.tensor([1.0, -1.0]), torch.ones(1)
    >>> both.step()
    >>> bits.tolist(), real.tolist()
    ([-1.0, 1.0], [-0.5])
    """

    def __init__(self, *parts: Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Let each part take its step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a loaded state, and give the parts their share of it."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        start = 0
        for part in self.parts:
            stop = start + len(part.param_groups)
            part.param_groups, part.state, start = self.param_groups[start:stop], self.state, stop
