"""Which weights of a layer stay: the part that every pruned quantizer holds, and what acts on a whole model.

``sparsity`` is the share of zeros. With ``scope="global"`` one ranking decides over all layers together; no layer can
do that by itself, so it keeps a mask that :func:`set_global_masks_` renews.
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
    """Keeps the most important weights: the share ``1 − sparsity`` of each filter, of the layer, or of the whole net.

    ``ramp`` is the share of training over which the sparsity rises from one half to its full value; 0 for none.
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
        """Make the mask that a global ranking fills in; until it does, every weight stays."""
        if self.scope == "global":
            self.register_buffer("kept", torch.ones_like(latents, dtype=torch.bool))

    def sparsity_at(self, progress: Tensor | None) -> float | Tensor:
        """The share of zeros when this share of training is done."""
        return self.sparsity if progress is None else ramped_sparsity(progress, self.sparsity, self.ramp)

    def mask(self, importance: Tensor, progress: Tensor | None) -> Tensor:
        """True where a weight stays."""
        if self.scope == "global":
            return fitted(self._buffers.get("kept"))
        return keep_largest(importance, self.sparsity_at(progress), scope=self.scope)

    def start_progress(self) -> Tensor | None:
        """The buffer a quantizer needs to follow the ramp, None where there is no ramp."""
        return torch.zeros(()) if self.ramp else None

    def initial_scale(self, connections: int, scale_fan: bool) -> float:
        """``√(2/D)``, with ``D`` the connections that stay where ``scale_fan`` says so."""
        return math.sqrt(2 / (connections * (1 - self.sparsity if scale_fan else 1)))

    def scale_correction(self, progress: Tensor | None, scale_fan: bool) -> Tensor | None:
        """What :meth:`initial_scale` lacks while the share kept is not yet, or never is, ``1 − sparsity``.

        ``√((1 − sparsity) / share kept)`` of a ramp, or of the layer's part in a global ranking; so the layer is as
        loud at every moment. None where the share never differs.
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
        """The settings, as the constructor takes them."""
        return f"{self.sparsity}, {self.scope!r}, ramp={self.ramp}"


def apply_scale_correction(values: Tensor, scale_correction: Tensor | None) -> Tensor:
    """``values`` times :meth:`PruningMask.scale_correction`, where there is any."""
    return values if scale_correction is None else values * scale_correction.to(values.dtype)


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
        if isinstance(layer, BinaryLayer) and isinstance(_sieve(layer), PruningMask) and _sieve(layer).scope == "global"
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
        _sieve(layer).kept.copy_(mask)
    counts = dict(zip(layers, torch.stack([mask.sum() for mask in masks]).tolist(), strict=True))  # one device sync
    if warn and (empty := [name for name, count in counts.items() if not count]):
        warn_empty_layers(empty, stacklevel=3)
    return counts


def warn_empty_layers(layers: Sequence[str], *, stacklevel: int = 2) -> None:
    """Warn about layers that a global ranking leaves without weights."""
    warnings.warn(
        f"the global ranking leaves {', '.join(map(repr, layers))} no weight, so nothing in front of it learns: "
        "lower the sparsity, or choose scope='layer'",
        stacklevel=stacklevel,
    )


def empty_filters(model: nn.Module) -> dict[str, list[int]]:
    """The filters of each binary layer in which no weight is left; layers without one are not named.

    Such a filter is allowed: its output is its bias alone.

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
    """Put every ramp of sparsity at its end, for the last epoch: the net then ends as pruned as was asked."""
    for layer in model.modules():
        if isinstance(layer, BinaryLayer) and isinstance(_sieve(layer), PruningMask):
            progress = _progress(layer)
            if progress is not None:
                progress.fill_(1.0)


def freeze_latents_(model: nn.Module) -> list[str]:
    """Turn the gradient off for latents that their quantizer never trains; return the names of the layers.

    Such latents get no gradient anyway, so an optimizer leaves them alone. Several processes that share gradients
    want to be told, all the same.
    """
    frozen = []
    for name, layer in model.named_modules():
        if isinstance(layer, BinaryLayer) and not getattr(layer.weight_quantizer, "train_latent", True):
            computed = parametrize.is_parametrized(layer, "weight")
            (layer.parametrizations["weight"] if computed else layer.weight).requires_grad_(False)  # type: ignore[index]
            frozen.append(name)
    if not frozen:
        raise ValueError("no layer leaves its latents untrained: MPT and train_latent=False do")
    return frozen


def _sieve(layer: BinaryLayer) -> PruningMask:
    return getattr(layer.weight_quantizer, "sieve", None)  # type: ignore[return-value]


def _common_sparsity(layers: dict[str, BinaryLayer]) -> float | Tensor:
    shares = {name: float(_sieve(layer).sparsity_at(_progress(layer))) for name, layer in layers.items()}
    if len(set(shares.values())) > 1:
        told = ", ".join(f"{name} {share:g}" for name, share in shares.items())
        raise ValueError(f"the layers ask for different sparsities ({told}): give one, as in sparsity=0.9")
    return next(iter(shares.values()))


def _progress(layer: BinaryLayer) -> Tensor | None:
    return layer.weight_quantizer._buffers.get("progress")
