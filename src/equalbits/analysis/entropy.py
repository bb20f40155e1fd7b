"""Mean entropy of each layer's filters during training."""

import math

import torch
from torch import nn

from equalbits.analysis.layer_hooks import binary_layers
from equalbits.analysis.step_table import StepTable
from equalbits.functional import filter_entropy


class EntropyWatcher:
    """Record the mean entropy of filters, in bits; call it as ``watcher(model, step)`` in any loop.

    Entropy is computed per filter and then averaged: pooling a layer's weights would hide filters that are biased in
    opposite directions (Fig. 1 of the paper). ``every=n`` measures every n-th step. At most ``limit`` rows are kept;
    when the table is full, every second row is dropped.

    >>> from equalbits.nn import BiHalf, BinaryLinear
    >>> watcher = EntropyWatcher()
    >>> watcher(nn.Sequential(BinaryLinear(8, 3, weight_quantizer=BiHalf())), 0)
    >>> watcher.steps, watcher.layers, watcher.network
    ([0], {'0': [1.0]}, [1.0])
    """

    def __init__(self, *, every: int = 1, limit: int = 50_000) -> None:
        if every < 1:
            raise ValueError(f"every={every} must be at least 1, which measures every step")
        self.every = every
        self._table = StepTable(limit=limit, adds=False)
        self._names: list[str] = []

    @torch.no_grad()
    def __call__(self, model: nn.Module, step: int) -> None:
        """Measure the model at this step."""
        if self._names and step % self.every:
            return
        filters = {name: filter_entropy(layer.symbols()) for name, layer in binary_layers(model).items()}
        if self._names and self._names != list(filters):
            raise ValueError(
                "the binary layers differ from those of the first call: use a separate watcher for each model"
            )
        self._names = list(filters)
        device = next(iter(filters.values())).device
        all_filters = torch.cat([entropies.to(device) for entropies in filters.values()])
        means = [entropies.nanmean().to(device) for entropies in (*filters.values(), all_filters)]
        self._table.add(step, torch.stack(means))

    @property
    def steps(self) -> list[int]:
        """Steps that were measured."""
        return list(self._table.steps)

    @property
    def layers(self) -> dict[str, list[float]]:
        """Mean over the filters of each layer, one value per entry of ``steps``."""
        return dict(zip(self._names, self._columns(), strict=False))

    @property
    def network(self) -> list[float]:
        """Mean over all filters of all layers."""
        return self._columns()[-1] if self._names else []

    def as_dict(self) -> dict[str, object]:
        """Return all values, for JSON; None where every symbol is pruned."""
        layers = {name: _with_none(values) for name, values in self.layers.items()}
        return {"steps": self.steps, "layers": layers, "network": _with_none(self.network)}

    def _columns(self) -> list[list[float]]:
        return [column.tolist() for column in self._table.rows().T]


def _with_none(values: list[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]
