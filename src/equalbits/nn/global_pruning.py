"""Pruning of a whole model: with ``scope="global"`` one ranking covers all layers, and each layer stores its mask."""

import warnings

import torch
from torch import nn
from torch.nn.utils import parametrize

from equalbits import functional as F
from equalbits.nn.binary_layer import layers_by_name
from equalbits.nn.methods.pruned import PrunedQuantizer
from equalbits.nn.quantizer import fitted


def set_global_masks_(
    model: nn.Module, *, sparsity: float | None = None, warned: set[str] | None = None
) -> dict[str, int]:
    """Rank the weights of all layers with ``scope="global"`` together, update their masks, return the counts kept.

    Call it once before training and then as often as the masks should follow the weights: as a watcher,
    ``lambda model, step: set_global_masks_(model)``. ``sparsity`` overrides the sparsity of the layers. Ties are
    broken by the order of the layers, then by index. The masks are written in place, so a captured graph sees them.
    It warns about layers left without weights, except those in ``warned``, to which it adds them.

    >>> from equalbits.nn import BinaryLinear, PrunedSign
    >>> model = nn.Sequential(*(BinaryLinear(8, 4, weight_quantizer=PrunedSign(0.75, scope="global")) for _ in "ab"))
    >>> sum(set_global_masks_(model).values())
    16
    """
    layers = layers_by_name(model)
    quantizers = {
        name: layer.weight_quantizer
        for name, layer in layers.items()
        if isinstance(layer.weight_quantizer, PrunedQuantizer) and layer.weight_quantizer.scope == "global"
    }
    if not quantizers:
        raise ValueError("no layer is pruned globally: give its quantizer scope='global', as in PrunedSign(0.9, ...)")
    importances = [quantizer.importance(layers[name].latents()) for name, quantizer in quantizers.items()]
    share = _common_sparsity(quantizers) if sparsity is None else sparsity
    masks = F.keep_largest_globally([importance.to(importances[0].device) for importance in importances], share)
    for quantizer, mask in zip(quantizers.values(), masks, strict=True):
        fitted(quantizer.sieve, "kept").copy_(mask)
    counts = dict(zip(quantizers, torch.stack([mask.sum() for mask in masks]).tolist(), strict=True))  # one device sync
    warned = set() if warned is None else warned
    if empty := [name for name, count in counts.items() if not count and name not in warned]:
        warned.update(empty)
        warnings.warn(
            f"the global ranking leaves no weight in {', '.join(map(repr, empty))}, so earlier layers get no gradient: "
            "lower the sparsity, or choose scope='layer'",
            stacklevel=2,
        )
    return counts


def empty_filters(model: nn.Module) -> dict[str, list[int]]:
    """Return the indices of filters with all weights pruned, by layer name; layers without any are left out.

    Such a filter is valid: its output is its bias.

    >>> from equalbits.nn import BinaryLinear, PrunedSign
    >>> layer = BinaryLinear(2, 2, weight_quantizer=PrunedSign(0.5))
    >>> _ = layer.weight.data.copy_(torch.tensor([[0.1, 0.2], [3.0, 4.0]]))
    >>> empty_filters(nn.Sequential(layer))
    {'0': [0]}
    """
    found = {}
    for name, layer in layers_by_name(model).items():
        empty = (F.as_filters(layer.symbols()) == 0).all(dim=1).nonzero().flatten().tolist()
        if empty:
            found[name] = empty
    return found


def end_ramps_(model: nn.Module) -> None:
    """Set every sparsity ramp to its end, so that the last epoch trains at full sparsity."""
    for module in model.modules():
        if isinstance(module, PrunedQuantizer) and module.progress is not None:
            module.progress.fill_(1.0)


def freeze_latents_(model: nn.Module) -> list[str]:
    """Set ``requires_grad`` to False for latents that their quantizer never trains; return the layer names.

    Such latents get no gradient in any case. DistributedDataParallel needs to know it in advance.
    """
    frozen = []
    for name, layer in layers_by_name(model).items():
        if not getattr(layer.weight_quantizer, "train_latent", True):
            computed = parametrize.is_parametrized(layer, "weight")
            (layer.parametrizations["weight"] if computed else layer.weight).requires_grad_(False)  # type: ignore[index]
            frozen.append(name)
    return frozen


def _common_sparsity(quantizers: dict[str, PrunedQuantizer]) -> float:
    shares = {name: float(quantizer.current_sparsity()) for name, quantizer in quantizers.items()}
    if len(set(shares.values())) > 1:
        listed = ", ".join(f"{name} {share:g}" for name, share in shares.items())
        raise ValueError(f"the layers have different sparsities ({listed}): pass one, as in sparsity=0.9")
    return next(iter(shares.values()))
