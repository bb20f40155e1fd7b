"""Latents that torch computes from other parameters, as its norms do: looking at them, handing back what changed."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.utils import parametrize


@contextmanager
def parametrization_in_eval(layer: nn.Module) -> Iterator[None]:
    """Have what computes a layer's latents stay as it is: spectral norm moves whenever it is asked in training."""
    moving = [part for part in _computed_by(layer) for part in part.modules() if part.training]
    for part in moving:
        part.training = False
    try:
        yield
    finally:
        for part in moving:
            part.training = True


def assign_latents_(layer: nn.Module, weight: Tensor) -> None:
    """Hand changed latents back to what they are computed from, where torch computes them: else they are lost."""
    if parametrize.is_parametrized(layer, "weight"):
        for part in _computed_by(layer):
            if not hasattr(part, "right_inverse"):
                raise ValueError(
                    f"latents computed by {type(part).__name__} cannot be changed after a step: give it a right_inverse"
                )
        layer.weight = weight
    elif not layer._parameters.keys().isdisjoint(("weight_orig", "weight_v")):  # torch's older norms, and its pruning
        raise ValueError(
            "latents that torch.nn.utils computes from weight_orig or weight_v cannot be changed after a step: make "
            "that permanent with its remove function, or use torch.nn.utils.parametrizations"
        )


def _computed_by(layer: nn.Module) -> list[nn.Module]:
    """What computes the weight from its original, one after the other; nothing where it is a parameter of its own."""
    if not parametrize.is_parametrized(layer, "weight"):
        return []
    return list(layer.parametrizations["weight"])  # type: ignore[index]
