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

from equalbits.functional import at_least_float32
from equalbits.optim.flips import balanced_flips, bop_flips


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

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add bits; raise if a value is not ±1."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            _check(group["gamma"], group["tau"], group["lr"])
            _check_bits(group["params"])
        except ValueError:
            self.param_groups.pop()
            raise
        group["start_lr"] = float(group["lr"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the averages and flip bits."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    momentum = self._averaged(parameter, group["gamma"] * (group["lr"] / group["start_lr"]))
                    flips = self.flips(parameter, momentum, group)
                    bits = torch.where(flips, -parameter, parameter)
                    # A non-finite average would never flip its bit, which would hide the divergence.
                    parameter.copy_(torch.where(momentum.isfinite(), bits, torch.nan))
        return loss

    def flips(self, bits: Tensor, momentum: Tensor, group: dict[str, Any]) -> Tensor:
        """Return a mask of the bits to flip."""
        return bop_flips(bits, momentum, group["tau"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; the averages keep their dtype."""
        super().load_state_dict(state_dict)
        self.load_averages_(state_dict["state"], state_dict["param_groups"])

    def load_averages_(self, saved: dict[int, dict[str, Any]], groups: list[dict[str, Any]]) -> None:
        """Load the averages again in their own dtype: torch casts loaded state to the parameter's dtype."""
        for group, own in zip(groups, self.param_groups, strict=True):
            for number, parameter in zip(group["params"], own["params"], strict=True):
                if "momentum" in saved.get(number, {}):
                    momentum = saved[number]["momentum"].to(
                        parameter.device, at_least_float32(parameter.dtype), copy=True
                    )
                    self.state[parameter]["momentum"] = momentum

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state; add ``lr`` to groups saved without it."""
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("lr", 1.0)
            group.setdefault("start_lr", float(group["lr"]))

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
    (:func:`equalbits.optim.flips.balanced_flips`). Start from exact filters, as of ``Bits(p_pos=0.5)``. A group with
    ``transposed_groups=n`` holds weights of a transposed convolution with ``n`` groups; ``bop_parameters`` sets it.

    >>> bits = torch.nn.Parameter(torch.tensor([[1.0, 1.0, -1.0, -1.0]]))
    >>> optimizer = BalancedBop([bits], gamma=1.0, tau=0.0)
    >>> bits.grad = torch.tensor([[0.4, 0.9, -0.1, 0.3]])  # two may fall, one may rise
    >>> optimizer.step()
    >>> bits.data
    tensor([[ 1., -1.,  1., -1.]])
    """

    def flips(self, bits: Tensor, momentum: Tensor, group: dict[str, Any]) -> Tensor:
        """Return a mask of the bits to flip: as many up as down in each filter."""
        groups = group["transposed_groups"]
        if not groups:
            return balanced_flips(bits, momentum, group["tau"])
        filters, averages = (_exchange_axes(tensor, groups) for tensor in (bits, momentum))
        return _exchange_axes(balanced_flips(filters, averages, group["tau"]), groups)


def _check(gamma: float | Tensor, tau: float, lr: float | Tensor) -> None:
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma={gamma}: the weight of a moving average must lie in (0, 1]; 1e-4 is usual")
    if not tau >= 0:
        raise ValueError(f"tau={tau}: the threshold must be at least 0")
    if not lr > 0:
        raise ValueError(f"lr={float(lr)}: gamma is proportional to it, so it must be above 0; 1 is usual")


def _check_bits(parameters: list[Tensor]) -> None:
    for parameter in parameters:
        if not bool((parameter.detach().abs() == 1).all()):
            raise ValueError(
                f"a parameter of shape {tuple(parameter.shape)} holds values other than -1 and +1: "
                f"use Bits() as weight quantizer and get the bits from bop_parameters(model)"
            )


def _exchange_axes(weight: Tensor, groups: int) -> Tensor:
    """Rearrange (in, out/groups, …) to (out, in/groups, …), or back."""
    grouped = weight.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2)
    return grouped.flatten(0, 1)
