"""Flips, entropy and exactness in the loops of Lightning, Accelerate and the Trainer of transformers."""

from typing import Any

import torch
from torch import Tensor, nn

from equalbits.analysis.audit import audit
from equalbits.analysis.layer_hooks import binary_layers
from equalbits.functional import count_flips, filter_entropy


class BitMeter:
    """Measure a model's bits: call it every n steps and log what it returns, to any logger.

    The values are ``bits/entropy`` (mean over all filters), ``bits/to_positive`` and ``bits/to_negative`` (symbols that
    differ from the previous call) and ``bits/inexact_filters`` (filters without the share of +1 that they promise; left
    out with ``exactness=False``). It also works as a metric of torchmetrics does: ``update`` adds the flips since the
    last update, ``compute`` returns the values, ``reset`` starts to count again. ``symbols`` holds those of the last
    update by the name of their layer.

    >>> from equalbits.nn import BiHalf, BinaryLinear
    >>> BitMeter()(nn.Sequential(BinaryLinear(8, 3, weight_quantizer=BiHalf())))
    {'bits/entropy': 1.0, 'bits/to_positive': 0, 'bits/to_negative': 0, 'bits/inexact_filters': 0}
    """

    def __init__(self, *, exactness: bool = True) -> None:
        self._exactness = exactness
        self.symbols: dict[str, Tensor] = {}
        self._entropy: float | None = None
        self._inexact_filters = self._to_positive = self._to_negative = 0

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """Return the values by the name of their curve, with the flips since the previous call."""
        self.reset()
        self.update(model)
        return self.compute()

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Add the flips since the last update, and measure the rest anew."""
        now = {name: layer.symbols().to(torch.int8) for name, layer in binary_layers(model).items()}
        before = self.symbols or now
        for name, symbols in now.items():
            flips = count_flips(before[name].to(symbols.device), symbols)
            self._to_positive += int(flips.to_positive.sum())
            self._to_negative += int(flips.to_negative.sum())
        self._entropy = float(torch.cat([filter_entropy(symbols).cpu() for symbols in now.values()]).nanmean())
        if self._exactness:
            self._inexact_filters = audit(model, strict=False).inexact_filters
        self.symbols = now

    def compute(self) -> dict[str, float]:
        """Return the values of the last update, and the flips of all updates since the last reset."""
        if self._entropy is None:
            raise ValueError("the meter has measured no model: call update(model) first")
        values = {"entropy": self._entropy, "to_positive": self._to_positive, "to_negative": self._to_negative}
        if self._exactness:
            values["inexact_filters"] = self._inexact_filters
        return {f"bits/{name}": value for name, value in values.items()}

    def reset(self) -> None:
        """Forget the flips, but not the symbols that the next update compares with."""
        self._to_positive = self._to_negative = 0


def lightning_callback(*, every: int = 100) -> Any:
    """Return a callback for ``lightning.Trainer``: log the bits every n steps, and audit the model at the end.

    The trainer's logger receives the values, such as TensorBoard or Weights & Biases.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError as error:
        raise ValueError(f"the callback needs lightning ({error}): pip install lightning") from None

    class LightningBits(Callback):  # type: ignore[misc]
        """Log flips, entropy and exactness."""

        def __init__(self) -> None:
            self.meter = BitMeter()

        def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
            self._log(trainer, pl_module)

        def on_train_batch_end(
            self, trainer: Any, pl_module: nn.Module, outputs: object, batch: object, batch_idx: int
        ) -> None:
            if trainer.global_step % every == 0:
                self._log(trainer, pl_module)

        def on_train_end(self, trainer: object, pl_module: nn.Module) -> None:
            audit(pl_module)

        def _log(self, trainer: Any, model: nn.Module) -> None:
            values = self.meter(model)
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step)

    return LightningBits()


def trainer_callback(*, every: int = 100) -> Any:
    """Return a callback for ``transformers.Trainer``: add the bits to its logs every n steps, and audit at the end."""
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise ValueError(f"the callback needs transformers ({error}): pip install transformers") from None

    class TrainerBits(TrainerCallback):  # type: ignore[misc]
        """Log flips, entropy and exactness."""

        def __init__(self) -> None:
            self.meter = BitMeter()
            self.values: dict[str, float] = {}

        def on_train_begin(
            self, args: object, state: object, control: object, model: nn.Module, **more: object
        ) -> None:
            self.values = self.meter(model)

        def on_step_end(self, args: object, state: Any, control: Any, model: nn.Module, **more: object) -> None:
            if state.global_step % every == 0:
                self.values = self.meter(model)
                control.should_log = True

        def on_log(
            self, args: object, state: Any, control: object, logs: dict[str, float] | None = None, **more: object
        ) -> None:
            if logs is not None:
                logs.update(self.values)
                state.log_history[-1].update(self.values)

        def on_train_end(self, args: object, state: object, control: object, model: nn.Module, **more: object) -> None:
            audit(model)

    return TrainerBits()
