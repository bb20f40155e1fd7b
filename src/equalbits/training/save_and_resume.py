"""Save a run while it trains, and resume it, together with all its processes."""

import dataclasses
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from equalbits._files import remove_partial_files
from equalbits._text import escape_control_chars, one_line
from equalbits.training import distributed
from equalbits.training.checkpoint_file import (
    BEST,
    CheckpointError,
    Metadata,
    load_checkpoint,
    load_optimizer,
    load_weights,
    optimizer_tensors,
    save_checkpoint,
)
from equalbits.training.history import EpochRecord
from equalbits.training.resume_checks import check_facts, check_settings
from equalbits.training.stop_signals import InterruptedTraining, StopRequest
from equalbits.training.training_run import TrainingRun

# Processes agree whether to stop at most this many seconds apart, since agreeing costs an all-reduce.
AGREE_SECONDS = 1.0


class Checkpointer:
    """Keep the checkpoints of a run in its directory; without one, do nothing."""

    def __init__(self, run: TrainingRun, stop: StopRequest) -> None:
        self.run, self.stop, self.path = run, stop, run.checkpoint
        self.saved_at = self.agreed_at = time.perf_counter()
        self.agreed_step = self.next_agreement = 0

    def save_if_due(self) -> None:
        """Save if ``config.checkpoint_seconds`` have passed; save and raise if any process received a stop signal."""
        if self.path is None or not (self.run.alone or self.run.position.step >= self.next_agreement):
            return
        due = time.perf_counter() - self.saved_at >= self.run.config.checkpoint_seconds
        signal_number, due = self._agree(self.stop.signal_number or 0, due)
        if signal_number or due:
            self.save()
        if signal_number:
            raise InterruptedTraining(signal_number, self.path)

    @contextmanager
    def save_if_interrupted(self) -> Iterator[None]:
        """Save and raise InterruptedTraining if a stop signal explains an error: it may have killed loader workers.

        Several processes may be at different steps, and none can save alone: there the error itself is raised.
        """
        try:
            yield
        except (RuntimeError, ValueError, OSError, EOFError):
            if self.stop.signal_number and self.run.alone and not self.run.step.in_progress:
                self.save_if_due()
            raise

    def interruptible(self, test: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the test batches; on a stop signal save and raise, and score again after the resume.

        Several processes may have different numbers of batches and cannot agree here: they score to the end.
        """
        for batch in test:
            if self.stop.signal_number and self.run.alone:
                with self.run.averaged():  # scoring has put the average into the model: save them in their places
                    self.save_if_due()
            yield batch

    def save_epoch(self, record: EpochRecord) -> None:
        """Save the best model if this epoch is the best; save a finished run, or any other as :meth:`save_if_due`."""
        if self.path is None:
            return
        if self.run.process.is_writer and self.run.history.best is record:
            with self.run.averaged():
                weights = prefixed("model.", self.run.model.state_dict())
                save_checkpoint(self.path.with_name(BEST), weights, run_metadata(self.run))
        if not self.run.is_done:
            self.save_if_due()
            return
        self.save()
        if self.stop.signal_number and self.run.alone:  # so that a caller starts nothing else
            raise InterruptedTraining(self.stop.signal_number, self.path)

    def _agree(self, signal_number: int, due: bool) -> tuple[int, bool]:
        """Return what all processes do now, and set the step at which they agree again."""
        if self.run.alone:
            return signal_number, due
        now, step = time.perf_counter(), self.run.position.step
        seconds_per_step = (now - self.agreed_at) / max(1, step - self.agreed_step)
        interval = min(AGREE_SECONDS, self.run.config.checkpoint_seconds)
        # Rank 0 decides after how many steps.
        steps = max(1.0, min(1000.0, interval / seconds_per_step)) if self.run.process.is_writer else 0.0
        number, any_due, wait = distributed.largest([signal_number, due, steps], self.run.device)
        self.agreed_at, self.agreed_step, self.next_agreement = now, step, step + int(wait)
        return int(number), bool(any_due)

    def save(self) -> None:
        """Write the checkpoint; raise instead if the run has diverged since the last one."""
        run = self.run
        self.saved_at = time.perf_counter()
        if self.path is None:
            return
        counts = distributed.summed(run.meter.sums)
        run.check_weights()
        if run.process.is_writer:
            tensors, metadata = saved_state(run)
            save_checkpoint(self.path, {**tensors, "meter": counts}, metadata)

    def resume(self) -> None:
        """Resume from the checkpoint in the directory, if there is one; its settings must be the same."""
        run = self.run
        if self.path is None:
            return
        if run.process.is_writer:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            remove_partial_files(self.path.parent)
        distributed.wait_for_all()
        found = distributed.summed(run.meter.sums.new_tensor(float(self.path.exists())))
        if found and found != run.process.world_size:
            raise CheckpointError(f"not every process can read {self.path}: use a directory that all of them share")
        if found:
            restore_run(run, *load_checkpoint(self.path), self.path)


def saved_state(run: TrainingRun) -> tuple[dict[str, Tensor], Metadata]:
    """Return the tensors and metadata that this process needs to resume."""
    moments, scalars = optimizer_tensors(run.optimizer)
    tensors = prefixed("model.", run.model.state_dict()) | prefixed("optimizer.", moments)
    if run.average is not None:
        with run.averaged():
            tensors |= {f"average.{name}": value.clone() for name, value in run.model.state_dict().items()}
    return {**tensors, "meter": run.meter.sums}, {**run_metadata(run), "optimizer": scalars}


def run_metadata(run: TrainingRun) -> Metadata:
    """Return the settings, position and history of a run."""
    return {
        "config": dataclasses.asdict(run.config),
        "epoch": run.epoch,
        "batch": run.batch,
        "batches": len(run.batches),
        "seconds": time.perf_counter() - run.epoch_began if run.batch else 0.0,
        "history": [record.as_dict() for record in run.epochs],
        "facts": run.facts,
        "changes": run.changes,
        **run.resume.notes,
    }


def restore_run(run: TrainingRun, tensors: dict[str, Tensor], metadata: Metadata, path: Path) -> None:
    """Restore what :func:`saved_state` returned; ``path`` is the file it was read from, for errors."""
    if _REQUIRED - set(metadata) or "meter" not in tensors:
        raise CheckpointError(f"cannot resume from {path}: it holds no training state; delete it to train again")
    with invalid_content(path):
        allow = run.resume.allow_changes
        changes = [*metadata.get("changes", ()), *run.resume.changes]
        changes += check_settings(metadata, run_metadata(run), path, allow=allow)
        changes += check_facts(metadata.get("facts", {}), run.facts, path, allow=allow)
        run.changes = list(dict.fromkeys(changes))
        epoch, batch, history = metadata["epoch"], metadata["batch"], metadata["history"]
        valid = isinstance(epoch, int) and isinstance(batch, int) and 0 <= epoch <= run.config.epochs
        if (
            not valid
            or not 0 <= batch <= len(run.batches)
            or len(history) != epoch
            or (epoch == run.config.epochs and batch)
        ):
            raise ValueError(f"it is at epoch {epoch}, batch {batch}, with a history of {len(history)} epochs")
        run.epoch, run.batch, run.epochs = epoch, batch, [EpochRecord.from_dict(record) for record in history]
        run.epoch_began = time.perf_counter() - float(metadata["seconds"])
        load_weights(run.model, with_prefix("model.", tensors), path)
        if run.average is not None:
            run.average.load(with_prefix("average.", tensors), run.position.step)
        load_optimizer(run.optimizer, with_prefix("optimizer.", tensors), metadata["optimizer"])
        counts = tensors["meter"]
        if counts.shape != run.meter.sums.shape or not bool(counts.isfinite().all()):
            raise ValueError(f"its counts are {counts.tolist()}")
    if run.process.is_writer:  # the counts are sums over all processes: one continues them
        run.meter.sums.copy_(counts)


@contextmanager
def invalid_content(path: Path) -> Iterator[None]:
    """Raise CheckpointError, in one line, for a readable checkpoint with unexpected content."""
    try:
        yield
    except CheckpointError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        reason = escape_control_chars(one_line(error))
        raise CheckpointError(
            f"cannot resume from {path} ({reason}): delete it to train again, or name another"
        ) from error


#: Metadata of every checkpoint that can resume; older ones have nothing else.
_REQUIRED = frozenset({"config", "epoch", "batch", "batches", "seconds", "history", "optimizer"})


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add a prefix to the names of tensors."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Select the tensors with a prefix, and remove it; the inverse of :func:`prefixed`."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
