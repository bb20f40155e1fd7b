"""Latents under a torch parametrization, as of weight or spectral norm: how to read them and assign to them."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.utils import parametrize


@contextmanager
def parametrization_in_eval(layer: nn.Module) -> Iterator[None]:
    """Put the parametrization of ``weight`` in eval mode: in training, reading it updates spectral norm's state."""
    in_training = [part for step in _parametrizations(layer) for part in step.modules() if part.training]
    for part in in_training:
        part.training = False
    try:
        yield
    finally:
        for part in in_training:
            part.training = True


def assign_latents_(layer: nn.Module, weight: Tensor) -> None:
    """Assign changed latents to a parametrized layer: written to the computed weight alone, they would be lost."""
    if parametrize.is_parametrized(layer, "weight"):
        for step in _parametrizations(layer):
            if not hasattr(step, "right_inverse"):
                raise ValueError(
                    f"latents parametrized by {type(step).__name__} cannot be changed after a step: define its "
                    "right_inverse"
                )
        layer.weight = weight
    elif not layer._parameters.keys().isdisjoint(("weight_orig", "weight_v")):  # older norms, pruning
        raise ValueError(
            "latents that torch.nn.utils computes from weight_orig or weight_v cannot be changed after a step: make "
            "that permanent with its remove function, or use torch.nn.utils.parametrizations"
        )


def _parametrizations(layer: nn.Module) -> list[nn.Module]:
    """Return the parametrizations of the weight in order; empty if it is a plain parameter."""
    if not parametrize.is_parametrized(layer, "weight"):
        return []
    return list(layer.parametrizations["weight"])  # type: ignore[index]
