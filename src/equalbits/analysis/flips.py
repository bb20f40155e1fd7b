"""``FlipWatcher``: how many symbols of each layer flip, in which direction, step by step."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from operator import sub
from typing import Any

import torch
from torch import Tensor, nn

from equalbits.analysis.observe import binary_layers
from equalbits.analysis.record import Record
from equalbits.functional import count_flips


@dataclass(frozen=True)
class FlipSeries:
    """Flips of some symbols over time: counts, one for each entry of ``steps``, which is the step where it ends."""

    steps: list[int]
    to_positive: list[int]
    to_negative: list[int]
    symbols: int

    @property
    def cumulative(self) -> tuple[list[int], list[int]]:
        """All flips so far, to +1 and to −1."""
        return list(accumulate(self.to_positive)), list(accumulate(self.to_negative))

    @property
    def difference(self) -> list[int]:
        """By how much the flips to +1 so far outnumber those to −1; 0 throughout where the share of +1 is exact."""
        return list(map(sub, *self.cumulative))

    def as_dict(self) -> dict[str, Any]:
        """The counts, for JSON."""
        return asdict(self)


class FlipWatcher:
    """Counts flips between one call and the next; call it as ``watcher(model, step)`` before training and after steps.

    ``filters`` asks for the flips of single filters besides those of layers, as in ``{"conv2": 0}``. With ``every``
    only each so-manieth step is looked at: a symbol that flipped there and back in between then counts as unmoved.
    Memory is bounded: two bytes for each weight, and at most ``limit`` rows of counts. When they are full,
    neighbouring rows are added together, so that no flip is lost (see :class:`~equalbits.analysis.record.Record`).

    >>> from equalbits.nn import BiHalf, BinaryLinear
    >>> layer = BinaryLinear(4, 1, weight_quantizer=BiHalf())
    >>> layer.weight.data = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    >>> watcher = FlipWatcher()
    >>> watcher(nn.Sequential(layer), 0)
    >>> layer.weight.data[0, 0] = 9.0
    >>> watcher(nn.Sequential(layer), 1)
    >>> watcher.layers["0"]
    FlipSeries(steps=[1], to_positive=[1], to_negative=[1], symbols=4)
    """

    def __init__(self, *, filters: Mapping[str, int] | None = None, every: int = 1, limit: int = 50_000) -> None:
        if every < 1:
            raise ValueError(f"every={every} is not a number of steps: 1 looks at each of them")
        self.asked, self.every = dict(filters or {}), every
        self._record = Record(limit=limit, adds=True)
        self._before: dict[str, Tensor] = {}
        self._flipped: dict[str, Tensor] = {}

    @torch.no_grad()
    def __call__(self, model: nn.Module, step: int) -> None:
        """Count what flipped since the last look. The first call only takes note."""
        if self._before and step % self.every:
            return
        now = {name: layer.symbols().to(torch.int8) for name, layer in binary_layers(model).items()}
        if not self._before:
            self._start(now)
        elif {name: symbols.shape for name, symbols in now.items()} != {n: s.shape for n, s in self._before.items()}:
            raise ValueError(
                "the model has other binary layers than at the first call: give each model its own watcher"
            )
        else:
            for name, symbols in now.items():  # the model may have moved
                self._before[name] = self._before[name].to(symbols.device)
                self._flipped[name] = self._flipped[name].to(symbols.device)
            self._record.add(step, self._flips(now))
        self._before = now

    @property
    def layers(self) -> dict[str, FlipSeries]:
        """The flips of each layer."""
        return self._read(0, {name: symbols.numel() for name, symbols in self._before.items()})

    @property
    def filters(self) -> dict[str, FlipSeries]:
        """The flips of each filter asked for, by its layer's name."""
        asked = self.asked if self._before else {}
        return self._read(len(self._before), {name: self._before[name][i].numel() for name, i in asked.items()})

    @property
    def silent(self) -> dict[str, int]:
        """How many symbols of each layer never flipped while watched."""
        return {name: int((~flipped).sum()) for name, flipped in self._flipped.items()}

    def as_dict(self) -> dict[str, Any]:
        """All counts, for JSON."""
        series = {"layers": self.layers, "filters": self.filters}
        every = {kind: {name: each.as_dict() for name, each in found.items()} for kind, found in series.items()}
        return {**every, "silent": self.silent}

    def _start(self, now: dict[str, Tensor]) -> None:
        for name, index in self.asked.items():
            if name not in now or not 0 <= index < len(now[name]):
                there = ", ".join(f"{known!r} ({len(symbols)})" for known, symbols in now.items())
                raise ValueError(f"filters={{{name!r}: {index}}} is not there; layers and their filters: {there}")
        self._flipped = {name: torch.zeros_like(symbols, dtype=torch.bool) for name, symbols in now.items()}

    def _flips(self, now: dict[str, Tensor]) -> Tensor:
        """One row: to +1 and to −1 of each layer, then of each filter asked for."""
        flips = {name: torch.stack(count_flips(self._before[name], symbols)) for name, symbols in now.items()}
        for name, symbols in now.items():
            # not in place, which torch forbids for what a look within inference mode made
            self._flipped[name] = self._flipped[name] | (symbols * self._before[name] < 0)
        parts = [counts.sum(dim=1) for counts in flips.values()]
        parts += [flips[name][:, index] for name, index in self.asked.items()]
        return torch.cat([part.to(parts[0].device) for part in parts])

    def _read(self, start: int, symbols: dict[str, int]) -> dict[str, FlipSeries]:
        steps, table = self._record.steps, self._record.table()
        columns = table.T.tolist() if len(table) else [[]] * (2 * (start + len(symbols)))
        pairs = zip(columns[2 * start :: 2], columns[2 * start + 1 :: 2], strict=True)
        return {n: FlipSeries(steps, up, down, symbols[n]) for n, (up, down) in zip(symbols, pairs, strict=False)}
