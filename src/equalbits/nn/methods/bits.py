"""Latent-free layers: the weights are the bits themselves. The optimizers are in ``equalbits.optim``."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equalbits import functional as F
from equalbits.nn.binary_layer import BinaryLayer, layers_by_name
from equalbits.nn.layers import BinaryConvTranspose2d
from equalbits.nn.quantizer import WeightQuantizer
from equalbits.nn.registry import register_quantizer


@register_quantizer("bits")
class Bits(WeightQuantizer):
    """No latents: the layer's ``weight`` is ±1, gets the gradient unchanged, and an optimizer flips it.

    The layer that takes the quantizer turns its weights into bits in place: their signs, or with ``p_pos`` exactly that
    share of +1 in each filter (Eq. 4). :class:`~equalbits.optim.BalancedBop` keeps that share,
    :class:`~equalbits.optim.Bop` does not. A torch optimizer would make the bits real again: give it the other half of
    :func:`bop_parameters`. Weights that are not ±1, such as an average of checkpoints, are binarized by the same rule.

    >>> from equalbits.nn import BinaryLinear
    >>> layer = BinaryLinear(6, 2, weight_quantizer=Bits(p_pos=0.5))
    >>> layer.weight.sum(dim=1).tolist(), layer.weight.abs().unique().tolist()
    ([0.0, 0.0], [1.0])
    """

    def __init__(self, p_pos: float | None = None) -> None:
        super().__init__()
        if p_pos is not None:
            F.check_p_pos(p_pos)
        self.p_pos = p_pos

    def fit_(self, latents: Tensor) -> None:
        """Turn the weights into bits, in place."""
        if not latents.is_meta:
            latents.copy_(self.start(latents))

    def start(self, latents: Tensor) -> Tensor:
        """Return the bits of real weights; raise if one is not finite. Bits are returned unchanged."""
        F.check_finite(latents)
        return self.symbols(latents)

    def symbols(self, latents: Tensor) -> Tensor:
        """Return the weights if all are ±1; else their signs, or with ``p_pos`` the ranking that gives that share."""
        signs = F.sign_symbols(latents)
        if self.p_pos is None:
            return signs
        are_bits = (latents.detach().abs() == 1).all()  # a tensor, to avoid synchronizing with the GPU
        return torch.where(are_bits, signs, F.transport_symbols(latents, self.p_pos))


class BopParameters(NamedTuple):
    """Parameters of a model: groups of bits for Bop, and real ones for any torch optimizer."""

    bits: list[dict[str, Any]]
    reals: list[nn.Parameter]


def bop_parameters(model: nn.Module) -> BopParameters:
    """Split the parameters of ``model`` into the weights of layers with :class:`Bits`, and all others.

    Weights that are not ±1 yet, as after loading a real checkpoint, become bits here.

    >>> from equalbits.nn import BinaryLinear
    >>> from equalbits.optim import BalancedBop
    >>> model = nn.Sequential(BinaryLinear(8, 4, weight_quantizer=Bits(p_pos=0.5)), nn.Linear(4, 2))
    >>> bits, reals = bop_parameters(model)
    >>> optimizers = BalancedBop(bits, gamma=1e-3), torch.optim.Adam(reals)
    >>> [len(reals), *(len(group["params"]) for group in bits)]
    [3, 1]
    """
    groups: dict[int, dict[nn.Parameter, None]] = {}  # ordered, and each weight once even if layers share it
    for name, layer in layers_by_name(model).items():
        if isinstance(layer.weight_quantizer, Bits):
            weight = _bit_parameter(name, layer)
            with torch.no_grad():
                weight.copy_(layer.from_filters(layer.weight_quantizer.start(layer.to_filters(weight))))
            transposed = layer.groups if isinstance(layer, BinaryConvTranspose2d) else 0
            groups.setdefault(transposed, {})[weight] = None
    if not groups:
        raise ValueError(
            "the model has no bits to optimize: binarize it with Bits(), in a recipe model.weight_quantizer=bits"
        )
    held = {weight for weights in groups.values() for weight in weights}
    bits = [{"params": list(weights), "transposed_groups": transposed} for transposed, weights in groups.items()]
    return BopParameters(bits, [parameter for parameter in model.parameters() if parameter not in held])


def _bit_parameter(name: str, layer: BinaryLayer) -> nn.Parameter:
    """Return the layer's weight; raise if it is sharded or computed from other parameters."""
    weight = layer.weight
    if hasattr(weight, "full_tensor"):  # torch's DTensor
        raise ValueError(
            "sharded bits cannot be flipped: train them with torch's DistributedDataParallel instead of fully_shard"
        )
    if not isinstance(weight, nn.Parameter):
        raise ValueError(
            f"layer {name!r} computes its weight from other parameters, so it has no bits to flip: remove the "
            f"parametrization, or give the layer a quantizer with latents, as BiHalf()"
        )
    return weight
