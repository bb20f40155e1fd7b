"""Saving a run while it goes and going on from what was saved, together with every other process of it."""

import dataclasses
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from equalbits._files import remove_partial_files
from equalbits.training import distributed
from equalbits.training.checkpoint import (
    BEST,
    LAST,
    CheckpointError,
    load_checkpoint,
    load_optimizer,
    load_weights,
    optimizer_tensors,
    save_checkpoint,
)
from equalbits.training.config import TrainConfig
from equalbits.training.history import EpochRecord, History
from equalbits.training.run import Run
from equalbits.training.stop_signals import InterruptedTraining, StopRequest

# How long processes go on, at most, without asking each other whether to stop: asking costs a round of messages.
AGREE_SECONDS = 1.0


class Saver:
    """Keeps the checkpoints of a run in its folder; without one it does nothing."""

    def __init__(self, run: Run) -> None:
        self.run, self.out = run, run.out
        self.saved_at = self.agreed_at = time.perf_counter()
        self.agreed_step = self.agree_step = 0

    def save_or_stop(self, signal_number: int | None) -> None:
        """Save if it is time to; save and stop if any process was asked to."""
        if self.out is None or not (self.run.alone or self.run.position.step >= self.agree_step):
            return
        due = time.perf_counter() - self.saved_at >= self.run.config.checkpoint_seconds
        signal_number, due = self._agreed(signal_number or 0, due)
        if signal_number or due:
            self.save()
        if signal_number:
            raise InterruptedTraining(signal_number, self.out / LAST)

    def stop_without_batch(self, signal_number: int | None) -> None:
        """Save and stop, if asked to, where a batch could not be had: what ends a group of processes ends workers, too.

        Among several processes each may stand elsewhere, and none can save alone.
        """
        if signal_number and self.run.alone and not self.run.step.under_way:
            self.save_or_stop(signal_number)

    def until_told_to_stop(
        self, test: Iterable[tuple[Tensor, Tensor]], stop: StopRequest
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The test images, batch by batch; once told to stop, the run is saved, and scored when it goes on.

        Several processes may have unlike numbers of batches, so they cannot agree here: they score to the end.
        """
        for batch in test:
            if stop.signal_number and self.run.alone:
                self.save_or_stop(stop.signal_number)
            yield batch

    def end_epoch(self, record: EpochRecord, signal_number: int | None) -> None:
        """Keep the model if none was better so far; save the finished run, or any other as :meth:`save_or_stop`."""
        best = History(tuple(self.run.epochs)).best
        if self.out is not None and self.run.place.is_writer and best is record:
            save_checkpoint(self.out / BEST, prefixed("model.", self.run.model.state_dict()), self.facts())
        if self.run.epoch < self.run.config.epochs:
            self.save_or_stop(signal_number)
            return
        self.save()
        if self.out is not None and signal_number and self.run.alone:  # so that whatever comes next is not begun
            raise InterruptedTraining(signal_number, self.out / LAST)

    def _agreed(self, signal_number: int, due: bool) -> tuple[int, bool]:
        """What all processes do now, and the step at which they ask each other again."""
        if self.run.alone:
            return signal_number, due
        now, step = time.perf_counter(), self.run.position.step
        pace = (now - self.agreed_at) / max(1, step - self.agreed_step)
        patience = min(AGREE_SECONDS, self.run.config.checkpoint_seconds)
        steps = max(1.0, min(1000.0, patience / pace)) if self.run.place.is_writer else 0.0  # one decides for all
        number, any_due, wait = distributed.largest([signal_number, due, steps], self.run.device)
        self.agreed_at, self.agreed_step, self.agree_step = now, step, step + int(wait)
        return int(number), bool(any_due)

    def save(self) -> None:
        """Write the checkpoint, unless the numbers have gone bad since the last one."""
        run = self.run
        self.saved_at = time.perf_counter()
        if self.out is None:
            return
        counts = distributed.summed(run.meter.sums)
        run.check_weights()
        if run.place.is_writer:
            tensors, facts = self.content()
            save_checkpoint(self.out / LAST, {**tensors, "meter": counts}, facts)

    def content(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that a run needs to go on, as this process has it: tensors, and facts."""
        moved, plain = optimizer_tensors(self.run.optimizer)
        tensors = prefixed("model.", self.run.model.state_dict()) | prefixed("optimizer.", moved)
        return {**tensors, "meter": self.run.meter.sums}, {**self.facts(), "optimizer": plain}

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says in words."""
        run = self.run
        return {
            "config": dataclasses.asdict(run.config),
            "epoch": run.epoch,
            "batch": run.batch,
            "batches": len(run.batches),
            "seconds": time.perf_counter() - run.began if run.batch else 0.0,
            "history": [record.as_dict() for record in run.epochs],
        }

    def resume(self) -> None:
        """Go on from the checkpoint in the folder where there is one made with the same settings."""
        if self.out is None:
            return
        if self.run.place.is_writer:
            self.out.mkdir(parents=True, exist_ok=True)
            remove_partial_files(self.out)
        distributed.wait_for_all()
        path = self.out / LAST
        seen = distributed.summed(self.run.meter.sums.new_tensor(float(path.exists())))
        if seen and seen != self.run.place.world_size:
            raise CheckpointError(f"not every process sees {path}: put the folder where all of them can read it")
        if seen:
            self.restore(*load_checkpoint(path), path)

    def restore(self, tensors: dict[str, Tensor], facts: dict[str, Any], path: Path) -> None:
        """Stand where :meth:`content` was taken; ``path`` is where it was found, for whoever must be told."""
        run = self.run
        missing = {*self.facts(), "optimizer"} - set(facts)
        if missing or "meter" not in tensors:
            raise CheckpointError(f"{path} is no checkpoint to go on from: delete it to train again, or name another")
        with understood(path):
            _check_same_settings(path, facts, self.facts())
            run.epoch, run.batch = _position(facts, run.config.epochs, len(run.batches))
            run.epochs = [EpochRecord.from_dict(record) for record in facts["history"]]
            run.seconds_before = float(facts["seconds"])
            load_weights(run.model, with_prefix("model.", tensors), path)
            load_optimizer(run.optimizer, with_prefix("optimizer.", tensors), facts["optimizer"])
            counts = tensors["meter"]
            if counts.shape != run.meter.sums.shape or not bool(counts.isfinite().all()):
                raise ValueError(f"its counts are {counts.tolist()}")
        if run.place.is_writer:  # the counts are those of all processes: one goes on with them
            run.meter.sums.copy_(counts)


@contextmanager
def understood(path: Path) -> Iterator[None]:
    """Refuse in one line a checkpoint that is whole, but does not say what ours say."""
    try:
        yield
    except CheckpointError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is no checkpoint to go on from ({' '.join(str(error).split())}): delete it to train again, "
            "or name another"
        ) from error


def _position(facts: dict[str, Any], epochs: int, batches: int) -> tuple[int, int]:
    """The epoch and the batch that a checkpoint stands at, if there are such."""
    epoch, batch = facts["epoch"], facts["batch"]
    fits = isinstance(epoch, int) and isinstance(batch, int) and 0 <= epoch <= epochs and 0 <= batch <= batches
    if not fits or len(facts["history"]) != epoch or (epoch == epochs and batch):
        raise ValueError(f"it stands at epoch {epoch}, batch {batch}, and tells of {len(facts['history'])} epochs")
    return epoch, batch


#: Settings that change no result, and so may differ when a run is gone on with.
FREE_SETTINGS = frozenset({"checkpoint_seconds", "evaluate_every", "speed"})


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one table of dotted names, each value as JSON gives it back.

    >>> flat({"seed": 0, "optimizer": {"betas": (0.9, 0.999)}})
    {'seed': 0, 'optimizer.betas': [0.9, 0.999]}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = list(value) if isinstance(value, tuple) else value
    return found


def _check_same_settings(path: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """A setting that is younger than the checkpoint had its default."""
    defaults = flat(dataclasses.asdict(TrainConfig(epochs=1)))
    before, wanted = ({**defaults, **flat(facts["config"]), "batches": facts["batches"]} for facts in (saved, now))
    for name, value in wanted.items():
        if name not in FREE_SETTINGS and before[name] != value:
            raise CheckpointError(
                f"{path} was made with {name}={before[name]}, this run has {name}={value}: "
                f"use the same settings to go on, or another folder to start anew"
            )


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under longer names."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names begin so, without it; the inverse of :func:`prefixed`."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
