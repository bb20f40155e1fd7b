"""Saving nets that train side by side, all in one file so that they stay in step, and going on from it."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from equalbits._files import remove_partial_files
from equalbits.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from equalbits.training.resume import Saver, prefixed, understood, with_prefix
from equalbits.training.run import Run
from equalbits.training.stop_signals import InterruptedTraining, NonFiniteError


class Memory(Protocol):
    """What someone who looks on has counted of a net: saved with the net, and put back with it."""

    def state_dict(self) -> dict[str, Tensor]:
        """All that was counted so far."""
        ...

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Go on counting from what :meth:`state_dict` gave, here on the CPU."""
        ...


class StackSaver:
    """Keeps the checkpoint of a stack at a path; without one it does nothing."""

    def __init__(self, runs: Sequence[Run], path: Path | None, memories: Sequence[Memory] = ()) -> None:
        self.savers, self.path, self.memories = [Saver(run) for run in runs], path, memories
        self.seconds = runs[0].config.checkpoint_seconds
        self.saved_at = time.perf_counter()

    def save_or_stop(self, errors: dict[int, NonFiniteError], signal_number: int | None) -> None:
        """Save if it is time to; save and stop if asked to. A net seen to have diverged is added to ``errors``."""
        if self.path is None or not (signal_number or time.perf_counter() - self.saved_at >= self.seconds):
            return
        self._save(self.path, errors)
        if signal_number:
            raise InterruptedTraining(signal_number, self.path)

    def _save(self, path: Path, errors: dict[int, NonFiniteError]) -> None:
        tensors: dict[str, Tensor] = {}
        nets: dict[str, Any] = {}
        for place, saver in enumerate(self.savers):
            try:
                if place not in errors:
                    saver.run.check_weights()
                    found, nets[str(place)] = saver.content()
                    tensors |= prefixed(f"{place}.", found)
                    if self.memories:
                        tensors |= prefixed(f"{place}.memory.", self.memories[place].state_dict())
            except NonFiniteError as error:
                errors[place] = error
        facts = {"stack": nets, "diverged": {str(place): str(error) for place, error in errors.items()}}
        save_checkpoint(path, tensors, facts)
        self.saved_at = time.perf_counter()

    def resume(self) -> dict[int, NonFiniteError]:
        """Go on from the file where there is one made with the same settings; which nets had diverged by then."""
        if self.path is None:
            return {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        remove_partial_files(self.path.parent)
        if not self.path.exists():
            return {}
        tensors, facts = load_checkpoint(self.path)
        with understood(self.path):
            errors = {int(place): NonFiniteError(words) for place, words in facts.get("diverged", {}).items()}
            places = {str(place) for place in range(len(self.savers)) if place not in errors}
            if set(facts.get("stack", {})) != places:
                raise CheckpointError(f"{self.path} is of another stack: delete it to train again, or name another")
            for place, saver in enumerate(self.savers):
                if place not in errors:
                    saver.restore(with_prefix(f"{place}.", tensors), facts["stack"][str(place)], self.path)
                    if self.memories:
                        self.memories[place].load_state_dict(with_prefix(f"{place}.memory.", tensors))
        return errors
