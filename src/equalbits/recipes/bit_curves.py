"""Curves of a run's bits, entropy and flips, beside those of its loss."""

from collections.abc import Sequence

from torch import nn

from equalbits.analysis import BitMeter
from equalbits.nn import BinaryLayer
from equalbits.training import EpochRecord, Reporter, StepRecord, TensorBoard, WeightsAndBiases


class BitCurves:
    """Reporter that measures a model's bits after every epoch, for the loggers that report after it."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._meter = model, BitMeter(exactness=False)
        self._values = self._meter(model)

    def __call__(self, record: StepRecord | EpochRecord) -> None:
        """Measure entropy, and the symbols that have flipped since the previous epoch."""
        if isinstance(record, EpochRecord):
            self._values = self._meter(self._model)

    def values(self) -> dict[str, float]:
        """Return the values of the last epoch."""
        return self._values


def logged_bits(model: nn.Module, reporters: Sequence[Reporter]) -> list[Reporter]:
    """Return ``reporters`` with one before them that measures the bits for those that draw curves."""
    curved = [each for each in reporters if isinstance(each, TensorBoard | WeightsAndBiases)]
    if not curved or not any(isinstance(layer, BinaryLayer) for layer in model.modules()):
        return list(reporters)
    bits = BitCurves(model)
    for reporter in curved:
        reporter.more = bits.values
    return [bits, *reporters]
