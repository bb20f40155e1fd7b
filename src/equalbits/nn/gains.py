"""Learned factors, one for each filter, that a quantizer gets when a layer takes it in."""

from torch import Tensor, nn


def times_gains(values: Tensor, gains: nn.Parameter | None) -> Tensor:
    """Each filter of ``values`` times its gain."""
    return values * fitted(gains).view(-1, *(1,) * (values.dim() - 1))


def fitted(parameter: nn.Parameter | None) -> nn.Parameter:
    """The parameter a layer made; an error where none did."""
    if parameter is None:
        raise ValueError("the quantizer has no parameters yet: a layer makes them, or call fit_(latents) first")
    return parameter
