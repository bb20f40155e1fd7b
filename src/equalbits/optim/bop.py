"""Bop, the latent-free binary optimizer, and a version that keeps every filter's share of +1 exact.

Their parameters are the bits, ±1; a torch optimizer trains the real parameters.
``equalbits.nn.bop_parameters`` splits a model's parameters into both kinds.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from equalbits.functional import as_filters, at_least_float32, exchange_channels, stable_ranks

#: A parameter group, or the state of a parameter, as torch's optimizers hold them.
Group = dict[str, Any]


class Bop(Optimizer):
    """Flip a bit when the moving average of its gradient exceeds a threshold (Helwegen et al. 2019).

    ``m ← (1 − gamma) · m + gamma · g`` from ``m = 0``; then ``b ← −b`` where ``b · m > tau``. Decay the adaptivity
    ``gamma`` where other optimizers decay the learning rate; ``tau`` is the threshold. The gradient includes the
    layer's scale: with a scale ``α`` the same flips need ``α · tau``. The defaults are those of the authors' CIFAR-10
    runs.

    ``lr`` is not part of the rule: schedulers change it, and ``gamma`` changes in proportion. A group's ``gamma`` and
    ``lr`` may be tensors on the device of the bits, which a captured step reads each time. A bit whose gradient is not
    finite becomes NaN, as a real weight would.

    >>> bits = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
    >>> optimizer = Bop([bits], gamma=0.5, tau=0.1)
    >>> bits.grad = torch.tensor([0.4, 0.4])
    >>> optimizer.step()
    >>> bits.data
    tensor([-1., -1.])
    """

    def __init__(self, params: ParamsT, *, gamma: float = 1e-4, tau: float = 1e-8, lr: float | Tensor = 1.0) -> None:
        super().__init__(params, {"gamma": gamma, "tau": tau, "lr": lr, "transposed_groups": 0})

    def add_param_group(self, param_group: Group) -> None:
        """Add bits; raise if a value is not ±1."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            _check(**group)
        except ValueError:
            self.param_groups.pop()
            raise
        group["start_lr"] = float(group["lr"])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the averages and flip bits."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    momentum = self._averaged(parameter, group["gamma"] * (group["lr"] / group["start_lr"]))
                    flips = self.flips(parameter, momentum, group)
                    bits = torch.where(flips, -parameter, parameter)
                    # A non-finite average would never flip its bit, which would hide the divergence.
                    parameter.copy_(torch.where(momentum.isfinite(), bits, torch.nan))
        return loss

    def flips(self, bits: Tensor, momentum: Tensor, group: Group) -> Tensor:
        """Return a mask of the bits to flip."""
        return bop_flips(bits, momentum, group["tau"])

    def load_state_dict(self, state_dict: Group) -> None:
        """Load a state; the averages keep their dtype."""
        super().load_state_dict(state_dict)
        self.load_averages_(state_dict["state"], state_dict["param_groups"])

    def load_averages_(self, saved: dict[int, Group], groups: list[Group]) -> None:
        """Load the averages again in their own dtype: torch casts loaded state to the parameter's dtype."""
        for group, own in zip(groups, self.param_groups, strict=True):
            for number, parameter in zip(group["params"], own["params"], strict=True):
                if "momentum" in saved.get(number, {}):
                    momentum = saved[number]["momentum"].to(
                        parameter.device, at_least_float32(parameter.dtype), copy=True
                    )
                    self.state[parameter]["momentum"] = momentum

    def _averaged(self, parameter: Tensor, gamma: float | Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:  # a small gamma would underflow in half precision
            state["momentum"] = torch.zeros_like(parameter, dtype=at_least_float32(parameter.dtype))
        momentum: Tensor = state["momentum"]
        if isinstance(gamma, Tensor):  # alpha= would synchronize with the device
            return momentum.mul_(1 - gamma).add_(parameter.grad * gamma)  # type: ignore[operator]
        return momentum.mul_(1 - gamma).add_(parameter.grad, alpha=gamma)  # type: ignore[arg-type]


class BalancedBop(Bop):
    """Bop that swaps bits: every filter flips as many up as down, so its count of +1 stays exact.

    The candidates are Bop's. If a filter has more candidates of one direction, only the strongest of them flip
    (:func:`balanced_flips`). Start from exact filters, as of ``Bits(p_pos=0.5)``. A group with
    ``transposed_groups=n`` holds weights of a transposed convolution with ``n`` groups; ``bop_parameters`` sets it.

    >>> bits = torch.nn.Parameter(torch.tensor([[1.0, 1.0, -1.0, -1.0]]))
    >>> optimizer = BalancedBop([bits], gamma=1.0, tau=0.0)
    >>> bits.grad = torch.tensor([[0.4, 0.9, -0.1, 0.3]])  # two may fall, one may rise
    >>> optimizer.step()
    >>> bits.data
    tensor([[ 1., -1.,  1., -1.]])
    """

    def flips(self, bits: Tensor, momentum: Tensor, group: Group) -> Tensor:
        """Return a mask of the bits to flip: as many up as down in each filter."""
        groups = group["transposed_groups"]
        if not groups:
            return balanced_flips(bits, momentum, group["tau"])
        filters, averages = (exchange_channels(tensor, groups) for tensor in (bits, momentum))
        return exchange_channels(balanced_flips(filters, averages, group["tau"]), groups)


def bop_flips(bits: Tensor, momentum: Tensor, tau: float) -> Tensor:
    """Return True where Bop flips a bit: ``b · m > tau`` (Helwegen et al. 2019).

    The average gradient then opposes the bit consistently and strongly enough. At ``b · m = tau`` nothing flips.

    >>> bop_flips(torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.tensor([0.5, -0.5, 0.5, -0.5]), 0.25)
    tensor([ True, False, False,  True])
    """
    return bits * momentum > tau


def balanced_flips(bits: Tensor, momentum: Tensor, tau: float) -> Tensor:
    """Return the flips of each filter with as many up as down, so that its count of +1 never changes.

    The candidates are Bop's: ``b · m > tau``. In each filter let ``n`` be the smaller of the numbers of candidates to
    rise (−1 → +1) and to fall. The ``n`` candidates with the largest ``b · m`` of either kind flip; the others keep
    their average. Ties go to the lower index. The first axis is the filter; a vector is one filter.

    >>> bits, momentum = torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.tensor([0.5, 0.7, -0.1, -0.6])
    >>> balanced_flips(bits, momentum, 0.25)  # two may fall, one may rise: the stronger one falls
    tensor([False,  True, False,  True])
    """
    rows, strength = as_filters(bits), as_filters(bits * momentum)  # (filter, connection)
    candidate = strength > tau
    rising, falling = candidate & (rows < 0), candidate & (rows > 0)
    pairs = torch.minimum(rising.sum(dim=1, keepdim=True), falling.sum(dim=1, keepdim=True))
    flips = _strongest(strength, rising, pairs) | _strongest(strength, falling, pairs)
    return flips.view(bits.shape)


def _strongest(strength: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """Mark the ``count`` strongest of each row ``among`` the candidates; ties go to the lower index."""
    return stable_ranks(-strength.masked_fill(~among, -torch.inf)) < count


def _check(*, params: list[Tensor], gamma: float | Tensor, tau: float, lr: float | Tensor, **_: object) -> None:
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma={gamma}: the weight of a moving average must lie in (0, 1]; 1e-4 is usual")
    if not tau >= 0:
        raise ValueError(f"tau={tau}: the threshold must be at least 0")
    if not lr > 0:
        raise ValueError(f"lr={float(lr)}: gamma is proportional to it, so it must be above 0; 1 is usual")
    for parameter in params:
        if not bool((parameter.detach().abs() == 1).all()):
            raise ValueError(
                f"a parameter of shape {tuple(parameter.shape)} holds values other than -1 and +1: "
                f"use Bits() as weight quantizer and get the bits from bop_parameters(model)"
            )
