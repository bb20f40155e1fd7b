"""The two ways a run ends early: it is told to stop, or its numbers leave the finite."""

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor, nn


class InterruptedTraining(Exception):  # noqa: N818 (it is no error)
    """Training was told to stop, and has saved where it stands."""

    def __init__(self, signal_number: int, checkpoint: Path) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(f"stopped by {name}; everything up to this step is in {checkpoint}")
        self.signal_number, self.checkpoint = signal_number, checkpoint


class NonFiniteError(ValueError):
    """The loss is no longer a number."""


class StopRequest:
    """Whether, and by which signal, the run was asked to stop."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: note the first, die of the second."""
        if self.signal_number is not None:  # asked twice: do not wait for the step
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.signal_number = number


@contextmanager
def stop_requests(*, listen: bool) -> Iterator[StopRequest]:
    """Note SIGTERM and Ctrl-C instead of dying of them, while the ``with`` lasts; a second one kills as usual."""
    request = StopRequest()
    if not listen or threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check_finite(loss_sum: float, model: nn.Module, *, step: int, checkpoint: Path | None) -> None:
    """Stop with the step, the layer and the way back when the loss is NaN or infinite."""
    if math.isfinite(loss_sum):
        return
    saved = checkpoint is not None and checkpoint.exists()
    way = f"the last good checkpoint is {checkpoint}" if saved else "nothing was saved before it"
    raise NonFiniteError(
        f"the loss is {loss_sum} at step {step:,}; {_culprit(model)}; {way}; lower optimizer.lr or set clip_norm=1"
    )


def _culprit(model: nn.Module) -> str:
    """The first layer, in the order of the net, whose parameters or gradients are not finite."""
    for name, parameter in model.named_parameters():
        for what, tensor in (("weights", parameter), ("gradient", parameter.grad)):
            if tensor is not None and not _finite(tensor):
                return f"first non-finite {what} in layer {name.rpartition('.')[0] or name!r}"
    return "weights and gradients are finite still, so look at the last layer's output and at the data"


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor.detach()).all())
