"""SIGTERM, SIGHUP and Ctrl-C: finish the step, save, then stop."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class InterruptedTraining(Exception):  # noqa: N818 (not an error)
    """Training was interrupted by a signal, and is saved."""

    def __init__(self, signal_number: int, checkpoint: Path, kept: str = "everything up to this step is in {}") -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}; {kept.format(checkpoint)}")
        self.signal_number, self.checkpoint = signal_number, checkpoint


_ONE_REQUEST = 1.0  # seconds within which the same signal again, or SIGHUP beside it, is a repeat of the first
_SIGHUP = getattr(signal, "SIGHUP", None)  # Windows has none


class StopRequest:
    """Signal handler that records the first stop signal."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self.received_at = -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Record the first signal; a second one kills the process.

        ``timeout`` signals a process and its group; systemd sends SIGTERM and SIGHUP when a login session ends.
        """
        related = number == self.signal_number or _SIGHUP in (number, self.signal_number)
        repeat = related and time.monotonic() - self.received_at < _ONE_REQUEST
        if self.signal_number is not None and not repeat:  # a second request: do not wait for the step
            if "TORCHELASTIC_RUN_ID" in os.environ:
                return  # torchrun forwards what the terminal sent already; it kills processes that take too long
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if not repeat:
            self.signal_number, self.received_at = number, time.monotonic()


@contextmanager
def stop_requests(*, listen: bool) -> Iterator[StopRequest]:
    """Record SIGTERM, SIGINT and SIGHUP inside the ``with`` instead of dying of them.

    SIGHUP stays ignored in a process started by ``nohup``. Without ``listen``, or outside the main thread, no handler
    is installed.
    """
    request = StopRequest()
    if not listen or threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = [signal.SIGTERM, signal.SIGINT]
    if _SIGHUP is not None and signal.getsignal(_SIGHUP) != signal.SIG_IGN:
        numbers.append(_SIGHUP)
    before = {number: signal.signal(number, request) for number in numbers}
    try:
        yield request
    except BaseException:
        request.signal_number = None  # the exception reaches the caller instead
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if request.signal_number is not None:  # arrived too late to act on: deliver it to the handler before ours
            signal.raise_signal(request.signal_number)
