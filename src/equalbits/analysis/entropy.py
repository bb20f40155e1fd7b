"""``EntropyWatcher``: the entropy of each layer's filters, step by step."""

import math
from typing import Any

import torch
from torch import nn

from equalbits.analysis.observe import binary_layers
from equalbits.analysis.record import Record
from equalbits.functional import filter_entropy


class EntropyWatcher:
    """Records the mean entropy of filters, in bits; call it as ``watcher(model, step)`` in any loop.

    The mean over filters is taken, since pooling a layer's weights would hide filters that lean in opposite
    directions (Fig. 1 of the paper). With ``every`` only each so-manieth step is looked at. At most ``limit`` rows are
    kept; when they are full every second one is let go.

    >>> from equalbits.nn import BiHalf, BinaryLinear
    >>> watcher = EntropyWatcher()
    >>> watcher(nn.Sequential(BinaryLinear(8, 3, weight_quantizer=BiHalf())), 0)
    >>> watcher.steps, watcher.layers, watcher.network
    ([0], {'0': [1.0]}, [1.0])
    """

    def __init__(self, *, every: int = 1, limit: int = 50_000) -> None:
        if every < 1:
            raise ValueError(f"every={every} is not a number of steps: 1 looks at each of them")
        self.every = every
        self._record = Record(limit=limit, adds=False)
        self._names: list[str] = []

    @torch.no_grad()
    def __call__(self, model: nn.Module, step: int) -> None:
        """Look at the model as it is now."""
        if self._names and step % self.every:
            return
        filters = {name: filter_entropy(layer.symbols()) for name, layer in binary_layers(model).items()}
        if self._names and self._names != list(filters):
            raise ValueError(
                "the model has other binary layers than at the first call: give each model its own watcher"
            )
        self._names = list(filters)
        device = next(iter(filters.values())).device
        everything = torch.cat([entropies.to(device) for entropies in filters.values()])
        means = [entropies.nanmean().to(device) for entropies in (*filters.values(), everything)]
        self._record.add(step, torch.stack(means))

    @property
    def steps(self) -> list[int]:
        """The steps looked at."""
        return self._record.steps

    @property
    def layers(self) -> dict[str, list[float]]:
        """Each layer's mean over its filters, one value for each of ``steps``."""
        return dict(zip(self._names, self._columns(), strict=False))

    @property
    def network(self) -> list[float]:
        """The mean over all filters of all layers."""
        return self._columns()[-1] if self._names else []

    def as_dict(self) -> dict[str, Any]:
        """All values, for JSON; None where no symbol is left."""
        layers = {name: _with_none(values) for name, values in self.layers.items()}
        return {"steps": self.steps, "layers": layers, "network": _with_none(self.network)}

    def _columns(self) -> list[list[float]]:
        return [column.tolist() for column in self._record.table().T]


def _with_none(values: list[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]
