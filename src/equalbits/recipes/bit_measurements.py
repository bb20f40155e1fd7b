"""Measurements of a net while it trains, for comparisons of methods and for curves: flips, entropy, seconds, size."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equalbits.analysis import BitMeter, summarize
from equalbits.functional import as_filters, attainable_entropy
from equalbits.nn import BinaryLayer
from equalbits.recipes.build import DataSpec
from equalbits.training import EpochRecord, Reporter, StepRecord, TensorBoard, WeightsAndBiases


class BitMeasurements:
    """Count the flips between the ends of epochs, and take the entropy there, of a net with binary layers.

    All counts are saved with the net, so they survive a resume. Of ``nets`` trained at once each takes an equal share
    of the time.
    """

    def __init__(self, model: nn.Module, *, nets: int = 1) -> None:
        self.model, self.nets, self.earlier_seconds = model, nets, 0.0
        self.layers = [layer for layer in model.modules() if isinstance(layer, BinaryLayer)]
        self.meter = BitMeter(exactness=False)
        self.values = self.meter(model) if self.layers else {}
        self.entropy = [self.values["bits/entropy"]] if self.layers else []
        self.to_positive: list[int] = []
        self.to_negative: list[int] = []
        self.began = time.perf_counter()

    def __call__(self, record: StepRecord | EpochRecord) -> None:
        """Measure at the end of an epoch."""
        if self.layers and isinstance(record, EpochRecord):
            self.values = self.meter(self.model)
            self.entropy.append(self.values["bits/entropy"])
            self.to_positive.append(int(self.values["bits/to_positive"]))
            self.to_negative.append(int(self.values["bits/to_negative"]))

    @property
    def seconds(self) -> float:
        """The net's share of the training time, including that before a resume."""
        return self.earlier_seconds + (time.perf_counter() - self.began) / self.nets

    def state_dict(self) -> dict[str, Tensor]:
        """All counts, to be saved with the net."""
        state = {f"symbols.{name}": symbols for name, symbols in self.meter.symbols.items()}
        counts = {"to_positive": self.to_positive, "to_negative": self.to_negative}
        state |= {name: torch.tensor(values, dtype=torch.int64) for name, values in counts.items()}
        reals = {"entropy": self.entropy, "seconds": [self.seconds]}
        return state | {name: torch.tensor(values, dtype=torch.float64) for name, values in reals.items()}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the counts of a checkpoint."""
        for name, symbols in self.meter.symbols.items():
            symbols.copy_(tensors[f"symbols.{name}"])
        self.to_positive, self.to_negative = tensors["to_positive"].tolist(), tensors["to_negative"].tolist()
        self.entropy = tensors["entropy"].tolist()
        self.earlier_seconds, self.began = float(tensors["seconds"]), time.perf_counter()

    def measured(self, images: DataSpec) -> dict[str, Any]:
        """Return all measurements as counts; a net without binary layers has no entropy."""
        total = summarize(self.model, (1, images.channels, images.size, images.size)).total
        found: dict[str, Any] = {name: total[name] for name in ("symbols", "packed_bytes", "float32_bytes")}
        if not self.layers:
            return found
        filters = [as_filters(symbols) for symbols in self.meter.symbols.values()]
        halves = 0  # filters with as many +1 as −1 among their kept weights, or one +1 more where that number is odd
        for rows in filters:
            positive, kept = (rows > 0).sum(dim=1), (rows != 0).sum(dim=1)
            halves += int((positive == (kept + 1) // 2).sum())
        attainable = sum(len(rows) * attainable_entropy(rows.shape[1]) for rows in filters)
        return found | {
            "p_pos": self.layers[0].weight_quantizer.p_pos,
            "filters": sum(map(len, filters)),
            "exact_filters": halves,
            "attainable_entropy": attainable / sum(map(len, filters)),
            "entropy": self.entropy,
            "to_positive": self.to_positive,
            "to_negative": self.to_negative,
        }


def logged_bits(model: nn.Module, reporters: Sequence[Reporter]) -> list[Reporter]:
    """Return ``reporters`` with one before them that measures the bits for those that draw curves."""
    curved = [each for each in reporters if isinstance(each, TensorBoard | WeightsAndBiases)]
    if not curved or not any(isinstance(layer, BinaryLayer) for layer in model.modules()):
        return list(reporters)
    bits = BitMeasurements(model)
    for reporter in curved:
        reporter.more = lambda: bits.values
    return [bits, *reporters]
