"""Masks of pruned quantizers, and functions that prune a whole model.

``sparsity`` is the share of zeros. With ``scope="global"`` one ranking covers all layers, so each layer stores a mask
that :func:`set_global_masks_` updates.
"""

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from equalbits import functional as F
from equalbits.functional import (
    check_scope,
    check_sparsity,
    is_number,
    keep_largest,
    keep_largest_globally,
    ramped_sparsity,
)
from equalbits.nn.binary_layer import BinaryLayer
from equalbits.nn.quantizer_state import fitted


class PruningMask(nn.Module):
    """Mask of the most important weights: the share ``1 − sparsity`` of each filter, of the layer, or of the model.

    ``ramp`` is the share of training over which the sparsity rises from one half to its full value; 0 for none. Pruned
    quantizers hold it as ``sieve``, the name that checkpoints use.
    """

    kept: Tensor

    def __init__(self, sparsity: float, scope: str, ramp: float = 0.0) -> None:
        super().__init__()
        check_sparsity(sparsity)
        check_scope(scope)
        if not is_number(ramp) or not 0 <= ramp <= 1:
            raise ValueError(f"ramp={ramp!r} is not a share of training: it must lie in [0, 1]; 0 means no ramp")
        self.sparsity, self.scope, self.ramp = float(sparsity), scope, float(ramp)

    def fit_(self, latents: Tensor) -> None:
        """Create the mask of a global ranking; until :func:`set_global_masks_`, every weight is kept."""
        if self.scope == "global":
            self.register_buffer("kept", torch.ones_like(latents, dtype=torch.bool))

    def sparsity_at(self, progress: Tensor | None) -> float | Tensor:
        """Return the sparsity at this share of training."""
        return self.sparsity if progress is None else ramped_sparsity(progress, self.sparsity, self.ramp)

    def mask(self, importance: Tensor, progress: Tensor | None) -> Tensor:
        """Return a mask that is True where a weight is kept."""
        if self.scope == "global":
            return fitted(self._buffers.get("kept"))
        return keep_largest(importance, self.sparsity_at(progress), scope=self.scope)

    def start_progress(self) -> Tensor | None:
        """Return the progress buffer of a quantizer with a ramp, None without one."""
        return torch.zeros(()) if self.ramp else None

    def initial_scale(self, connections: int, scale_fan: bool) -> float:
        """Return ``√(2/D)``, where ``D`` counts only the kept connections if ``scale_fan`` is set."""
        return math.sqrt(2 / (connections * (1 - self.sparsity if scale_fan else 1)))

    def scale_correction(self, progress: Tensor | None, scale_fan: bool) -> Tensor | None:
        """Return the factor ``√((1 − sparsity) / share kept)``, which keeps the output variance constant.

        The share kept differs from ``1 − sparsity`` during a ramp and in a global ranking. None if it never differs.
        """
        if not scale_fan:
            return None
        if self.scope == "global":
            share = self.kept.sum().clamp(min=1) / self.kept.numel()
        elif progress is not None:
            share = 1 - ramped_sparsity(progress, self.sparsity, self.ramp)
        else:
            return None
        return ((1 - self.sparsity) / share).sqrt()

    def extra_repr(self) -> str:
        """Return the constructor's arguments."""
        return f"{self.sparsity}, {self.scope!r}, ramp={self.ramp}"


def apply_scale_correction(values: Tensor, correction: Tensor | None) -> Tensor:
    """Multiply ``values`` by :meth:`PruningMask.scale_correction`, if any."""
    return values if correction is None else values * correction.to(values.dtype)


def set_global_masks_(model: nn.Module, *, sparsity: float | None = None, warn: bool = True) -> dict[str, int]:
    """Rank the weights of all layers with ``scope="global"`` together, update their masks, return the counts kept.

    Call it once before training and then as often as the masks should follow the weights: as a watcher,
    ``lambda model, step: set_global_masks_(model)``. ``sparsity`` overrides the sparsity of the layers. Ties are
    broken by the order of the layers, then by index. The masks are written in place, so a captured graph sees them.
    ``warn`` warns about layers left without weights: no gradient passes through them.

    >>> from equalbits.nn import BinaryLinear, PrunedSign
    >>> model = nn.Sequential(*(BinaryLinear(8, 4, weight_quantizer=PrunedSign(0.75, scope="global")) for _ in "ab"))
    >>> sum(set_global_masks_(model).values())
    16
    """
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, BinaryLayer)
        and isinstance(_mask_of(layer), PruningMask)
        and _mask_of(layer).scope == "global"
    }
    if not layers:
        raise ValueError("no layer is pruned globally: give its quantizer scope='global', as in PrunedSign(0.9, ...)")
    quantizers = [layer.weight_quantizer for layer in layers.values()]
    importances = [
        quantizer.importance(layer.latents())  # type: ignore[operator]
        for quantizer, layer in zip(quantizers, layers.values(), strict=True)
    ]
    share = _common_sparsity(layers) if sparsity is None else sparsity
    masks = keep_largest_globally([importance.to(importances[0].device) for importance in importances], share)
    for layer, mask in zip(layers.values(), masks, strict=True):
        _mask_of(layer).kept.copy_(mask)
    counts = dict(zip(layers, torch.stack([mask.sum() for mask in masks]).tolist(), strict=True))  # one device sync
    if warn and (empty := [name for name, count in counts.items() if not count]):
        warn_empty_layers(empty, stacklevel=3)
    return counts


def warn_empty_layers(layers: Sequence[str], *, stacklevel: int = 2) -> None:
    """Warn about layers that a global ranking leaves without weights."""
    warnings.warn(
        f"the global ranking leaves no weight in {', '.join(map(repr, layers))}, so earlier layers get no gradient: "
        "lower the sparsity, or choose scope='layer'",
        stacklevel=stacklevel,
    )


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
    for name, layer in model.named_modules():
        if isinstance(layer, BinaryLayer):
            empty = (F.as_filters(layer.symbols()) == 0).all(dim=1).nonzero().flatten().tolist()
            if empty:
                found[name] = empty
    return found


def end_ramps_(model: nn.Module) -> None:
    """Set every sparsity ramp to its end, so that the last epoch trains at full sparsity."""
    for layer in model.modules():
        if isinstance(layer, BinaryLayer) and isinstance(_mask_of(layer), PruningMask):
            progress = _progress(layer)
            if progress is not None:
                progress.fill_(1.0)


def freeze_latents_(model: nn.Module) -> list[str]:
    """Set ``requires_grad`` to False for latents that their quantizer never trains; return the layer names.

    Such latents get no gradient in any case. DistributedDataParallel needs to know it in advance.
    """
    frozen = []
    for name, layer in model.named_modules():
        if isinstance(layer, BinaryLayer) and not getattr(layer.weight_quantizer, "train_latent", True):
            computed = parametrize.is_parametrized(layer, "weight")
            (layer.parametrizations["weight"] if computed else layer.weight).requires_grad_(False)  # type: ignore[index]
            frozen.append(name)
    if not frozen:
        raise ValueError("no layer has frozen latents: use MPT or train_latent=False")
    return frozen


def _mask_of(layer: BinaryLayer) -> PruningMask:
    return getattr(layer.weight_quantizer, "sieve", None)  # type: ignore[return-value]


def _common_sparsity(layers: dict[str, BinaryLayer]) -> float | Tensor:
    shares = {name: float(_mask_of(layer).sparsity_at(_progress(layer))) for name, layer in layers.items()}
    if len(set(shares.values())) > 1:
        listed = ", ".join(f"{name} {share:g}" for name, share in shares.items())
        raise ValueError(f"the layers have different sparsities ({listed}): pass one, as in sparsity=0.9")
    return next(iter(shares.values()))


def _progress(layer: BinaryLayer) -> Tensor | None:
    return layer.weight_quantizer._buffers.get("progress")
