"""Learned factors, one for each filter, that a quantizer gets when a layer takes it in."""

from typing import TypeVar

from torch import Tensor, nn

Made = TypeVar("Made", bound=Tensor)


def times_gains(values: Tensor, gains: nn.Parameter | None) -> Tensor:
    """Each filter of ``values`` times its gain."""
    return values * fitted(gains).view(-1, *(1,) * (values.dim() - 1))


def fitted(made: Made | None) -> Made:
    """The parameter or buffer a layer made; an error where none did."""
    if made is None:
        raise ValueError("the quantizer has no parameters yet: a layer makes them, or call fit_(latents) first")
    return made
