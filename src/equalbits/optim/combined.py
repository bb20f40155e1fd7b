"""Several optimizers as one: for example one for the bits and one for the real parameters."""

from collections.abc import Callable, Iterator

import torch
from torch.optim import Optimizer

from equalbits.optim.bop import Bop, Group


class CombinedOptimizer(Optimizer):
    """Optimizers of different parameters that step, save and load as one.

    Parameter groups and state are shared with the parts, so schedulers and checkpoints treat it as one optimizer.

    >>> from equalbits.optim import Bop
    >>> bits, real = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(1))
    >>> both = CombinedOptimizer(Bop([bits], gamma=1.0, tau=0.0), torch.optim.SGD([real], lr=0.5))
    >>> bits.grad, real.grad = torch.tensor([1.0, -1.0]), torch.ones(1)
    >>> both.step()
    >>> bits.tolist(), real.tolist()
    ([-1.0, 1.0], [-0.5])
    """

    parts: tuple[Optimizer, ...] = ()

    def __init__(self, *parts: Optimizer) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        for part in parts:
            self.state.update(part.state)
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step every part."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self.parts:
            part.step()
        return loss

    def add_param_group(self, param_group: Group) -> None:
        """Raise: the optimizer of a new group would be ambiguous."""
        if self.parts:
            raise ValueError(
                "CombinedOptimizer cannot choose the optimizer of a new group: add it to one of them, as in "
                "both.parts[1].add_param_group(…), then build both = CombinedOptimizer(*both.parts)"
            )
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: Group) -> None:
        """Load a state; Bop's averages keep their dtype."""
        super().load_state_dict(state_dict)
        for part, groups in self._shares(state_dict["param_groups"]):
            if isinstance(part, Bop):
                part.load_averages_(state_dict["state"], groups)

    def __getstate__(self) -> Group:
        return {"parts": self.parts, **super().__getstate__()}

    def __setstate__(self, state: Group) -> None:
        """Restore the state and share it with the parts."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        for part, groups in self._shares(self.param_groups):
            part.__setstate__({"param_groups": groups, "state": self.state})

    def _shares(self, groups: list[Group]) -> Iterator[tuple[Optimizer, list[Group]]]:
        """Yield each part with its own groups."""
        start = 0
        for part in self.parts:
            stop = start + len(part.param_groups)
            yield part, groups[start:stop]
            start = stop
