"""Save a stack of nets in one file, so that they stay at the same step, and resume it."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from torch import Tensor

from equalbits._files import remove_partial_files
from equalbits.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from equalbits.training.divergence import NonFiniteError
from equalbits.training.history import Reporter
from equalbits.training.resume import Checkpointer, invalid_content, prefixed, with_prefix
from equalbits.training.run import TrainingRun
from equalbits.training.stop_signals import InterruptedTraining, StopRequest


@runtime_checkable
class Stateful(Protocol):
    """A reporter with counts that are saved and restored with its net."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return all counts so far."""
        ...

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` returned, now on the CPU."""
        ...


class StackCheckpointer:
    """Keep the checkpoint of a stack at ``path``; without one, do nothing.

    ``errors`` holds the nets that have diverged, by their place in the stack: they are left out of the checkpoint.
    """

    def __init__(
        self, runs: Sequence[TrainingRun], stop: StopRequest, path: Path | None, reporters: Sequence[Sequence[Reporter]]
    ) -> None:
        self.nets, self.stop, self.path = [Checkpointer(run, stop) for run in runs], stop, path
        self.stateful: list[Stateful | None] = [
            next((cast("Stateful", reporter) for reporter in of_net if isinstance(reporter, Stateful)), None)
            for of_net in reporters
        ]
        self.seconds = runs[0].config.checkpoint_seconds
        self.saved_at = time.perf_counter()

    def save_if_due(self, errors: dict[int, NonFiniteError]) -> None:
        """Save if it is time to; save and raise after a stop signal. Nets found to have diverged go to ``errors``."""
        signal_number = self.stop.signal_number
        if self.path is None or not (signal_number or time.perf_counter() - self.saved_at >= self.seconds):
            return
        self._save(self.path, errors)
        if signal_number:
            raise InterruptedTraining(signal_number, self.path)

    def _save(self, path: Path, errors: dict[int, NonFiniteError]) -> None:
        tensors: dict[str, Tensor] = {}
        nets: dict[str, Any] = {}
        for place, (net, stateful) in enumerate(zip(self.nets, self.stateful, strict=True)):
            try:
                if place not in errors:
                    net.run.check_weights()
                    found, nets[str(place)] = net.state()
                    tensors |= prefixed(f"{place}.", found)
                    if stateful is not None:
                        tensors |= prefixed(f"{place}.memory.", stateful.state_dict())
            except NonFiniteError as error:
                errors[place] = error
        metadata = {"stack": nets, "diverged": {str(place): str(error) for place, error in errors.items()}}
        save_checkpoint(path, tensors, metadata)
        self.saved_at = time.perf_counter()

    def resume(self) -> dict[int, NonFiniteError]:
        """Resume from the file if there is one; return the errors of nets that had diverged by then."""
        if self.path is None:
            return {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        remove_partial_files(self.path.parent)
        if not self.path.exists():
            return {}
        tensors, metadata = load_checkpoint(self.path)
        with invalid_content(self.path):
            errors = {int(place): NonFiniteError(text) for place, text in metadata.get("diverged", {}).items()}
            places = {str(place) for place in range(len(self.nets)) if place not in errors}
            if set(metadata.get("stack", {})) != places:
                raise CheckpointError(f"{self.path} is of another stack: delete it to train again, or name another")
            for place, (net, stateful) in enumerate(zip(self.nets, self.stateful, strict=True)):
                if place not in errors:
                    net.restore(with_prefix(f"{place}.", tensors), metadata["stack"][str(place)], self.path)
                    if stateful is not None:
                        stateful.load_state_dict(with_prefix(f"{place}.memory.", tensors))
        return errors
