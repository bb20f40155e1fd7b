"""The two ways a run ends early: it is told to stop, or its numbers leave the finite."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
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


_LOWER = "lower optimizer.lr or set clip_norm=1"
_ONE_REQUEST = 1.0  # seconds within which the same signal again, or SIGHUP beside it, is an echo of the first
_HUNG_UP = getattr(signal, "SIGHUP", None)  # Windows has none


class StopRequest:
    """Whether, and by which signal, the run was asked to stop."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self.asked_at = -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: note the first, die of the second.

        ``timeout`` sends one to a process and to its group, systemd SIGTERM and SIGHUP to a login that ends.
        """
        alike = number == self.signal_number or _HUNG_UP in (number, self.signal_number)
        echo = alike and time.monotonic() - self.asked_at < _ONE_REQUEST
        if self.signal_number is not None and not echo:  # asked twice: do not wait for the step
            if "TORCHELASTIC_RUN_ID" in os.environ:
                return  # torchrun passes on what the terminal sent already; it kills whoever takes too long
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if not echo:
            self.signal_number, self.asked_at = number, time.monotonic()


@contextmanager
def stop_requests(*, listen: bool) -> Iterator[StopRequest]:
    """Note SIGTERM, Ctrl-C and a terminal that goes away instead of dying of them, while the ``with`` lasts.

    A second one kills as usual. Whoever was started to outlive its terminal, as by ``nohup``, does.
    """
    request = StopRequest()
    if not listen or threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request) for number in _stopping()}
    try:
        yield request
    except BaseException:
        request.signal_number = None  # what ends the ``with`` is what the caller hears of
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if request.signal_number is not None:  # it came too late for anyone to act upon: now it does what it did before
            signal.raise_signal(request.signal_number)


def _stopping() -> list[signal.Signals]:
    outlives = _HUNG_UP is None or signal.getsignal(_HUNG_UP) == signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *(() if outlives else (_HUNG_UP,))]


def check_finite(
    loss_sum: float, model: nn.Module, images: Tensor | None = None, *, step: int, checkpoint: Path | None, of: str = ""
) -> None:
    """Stop with the step, the layer and the way back when the loss is NaN or infinite.

    ``images`` are those of the step that was not taken because of it, where they are known; ``of`` says whose loss it
    is, if not the step's.
    """
    if math.isfinite(loss_sum):
        return
    if images is not None and not _finite(images):
        culprit, way_out = "the images themselves are not finite", "mend them, or data.statistics"
    else:
        culprit = (images is not None and _first_bad_output(model, images)) or _bad_weights(model)
        way_out = _LOWER
    what = f"the loss{of} is {loss_sum} at step {step:,}"
    raise NonFiniteError(f"{what}; {culprit}; {_way_back(checkpoint)}; {way_out}")


def check_weights(model: nn.Module, *, step: int, checkpoint: Path | None) -> None:
    """Stop likewise when a weight is NaN or infinite, as after a step whose loss was finite and whose gradient not."""
    if not _all_finite(model.parameters()):
        raise NonFiniteError(
            f"weights left the finite at step {step:,}; {_bad_weights(model)}; {_way_back(checkpoint)}; {_LOWER}"
        )


def check_scored(loss_sum: float, model: nn.Module) -> None:
    """Refuse the score of a net whose numbers have left the finite: behind a sign the logits do not show it.

    Buffers may hold infinities, as the masks of attention do, and are held to be numbers only.
    """
    if not _all_finite(model.parameters()):
        raise NonFiniteError(f"the score would mean nothing: {_bad_weights(model)}; take another checkpoint")
    for name, buffer in model.named_buffers():
        if bool(torch.isnan(buffer).any()):
            raise NonFiniteError(f"the score would mean nothing: buffer {name!r} holds NaN; take another checkpoint")
    if not math.isfinite(loss_sum):
        raise NonFiniteError(f"the loss is {loss_sum} on the test images; {_bad_weights(model)}")


def _way_back(checkpoint: Path | None) -> str:
    saved = checkpoint is not None and checkpoint.exists()
    return f"the last good checkpoint is {checkpoint}" if saved else "nothing was saved before it"


def _first_bad_output(model: nn.Module, images: Tensor) -> str | None:
    """The first part of the net, in the order it runs, whose output is not finite."""
    found: list[str] = []

    def look_at(name: str) -> Callable[[nn.Module, object, object], None]:
        def look(module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and not _finite(output):
                found.append(f"first non-finite output in layer {name!r}, a {type(module).__name__}")

        return look

    hooks = [module.register_forward_hook(look_at(name)) for name, module in model.named_modules()]
    try:
        with torch.no_grad():
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


def _bad_weights(model: nn.Module) -> str:
    """The first layer whose weights are not finite; they spread quickly, so where all are bad none is to blame."""
    bad = [name for name, parameter in model.named_parameters() if not _finite(parameter)]
    if len(bad) == len(list(model.parameters())):
        on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
        return "by now no weight is finite" + ("" if on_cpu else ", so find the layer with --device cpu")
    if bad:
        return f"first non-finite weights in layer {bad[0].rpartition('.')[0] or bad[0]!r}"
    return "all weights are finite still, so look at the images, the labels and the loss"


def _all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all are, asking a device once."""
    found = [torch.isfinite(tensor.detach()).all() for tensor in tensors]
    return not found or bool(torch.stack([flag.to(found[0].device) for flag in found]).all())


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor.detach()).all())
