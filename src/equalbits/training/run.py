"""Where a run stands: model, optimizer, position and counts; and how it takes steps, reports and ends an epoch."""

import dataclasses
import importlib.util
import math
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from equalbits.nn import (
    PruningMask,
    at_epoch_,
    end_ramps_,
    freeze_latents_,
    set_global_masks_,
    set_progress,
    warn_empty_layers,
)
from equalbits.training import distributed
from equalbits.training.checkpoint import LAST
from equalbits.training.config import TrainConfig
from equalbits.training.cuda_graph import CapturedSteps, DeviceBatches
from equalbits.training.distill import Loss
from equalbits.training.history import EpochRecord, Reporter, StepRecord
from equalbits.training.randomness import mixed, seed_generators, seed_others
from equalbits.training.schedule import Position, learning_rate
from equalbits.training.score import Meter, count_score, device_of, known_classes
from equalbits.training.step import Batches, Step, make_optimizer, plain_steps, set_learning_rate
from equalbits.training.stop_signals import NonFiniteError, check_finite, check_weights

# A host that asks a GPU for its counts has to wait for it; once a second is often enough for a person.
REPORT_SECONDS = 1.0


class Run:
    """One training run: takes steps, keeps count, and says how it goes."""

    def __init__(self, model: nn.Module, batches: Batches, config: TrainConfig, loss: Loss, out: Path | None) -> None:
        if len(batches) == 0:
            raise ValueError("there is no batch to train on: the training data is empty or smaller than one batch")
        self.model, self.batches, self.loss, self.out = model, batches, loss, out
        self.place = distributed.place()
        self.alone = self.place.world_size == 1
        self.device = device_of(model)
        can_capture = self.alone and not config.distill.wants_teacher and _on_device(batches, self.device)
        self.config = config.settled(self.device.type, can_capture=can_capture, can_compile=_can_compile())
        self.may_fall_back = config.speed == "auto"
        if self.config.in_graph and not can_capture:
            raise ValueError(
                f"speed={self.config.speed!r} needs one process, data on a GPU and no teacher: use 'compiled'"
            )
        if self.config.speed != "plain":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = make_optimizer(model, config.optimizer, capture=self.config.in_graph)
        self.meter = Meter(self.device)
        self.epoch, self.batch = 0, 0
        self.epochs: list[EpochRecord] = []
        self.reported_at = self.began = self.resumed_at = time.perf_counter()
        self.first_batch = self.seen_before = 0
        self.seconds_before = 0.0  # that an epoch which is gone on with had taken already
        self.lr = math.nan
        self.captured: CapturedSteps | None = None
        self.told_empty: set[str] = set()
        self.global_masks = any(isinstance(part, PruningMask) and part.scope == "global" for part in model.modules())

    def make_step(self) -> None:
        """Make the step, once the model is what it starts from: sharing it out among processes copies it."""
        if self.config.speed != "plain":
            torch.compiler.reset()  # so that one process may train net after net without end
        self.step = Step(self._wrapped(), self.optimizer, self.loss, self.config, self.meter)
        if not self.is_done:  # whoever looks before the first step sees the net that it meets
            self._tell_progress()
            self._renew_masks()

    def _wrapped(self) -> nn.Module:
        if self.alone:
            return self.model
        if self.config.sync_batch_norm:
            if self.device.type != "cuda":
                raise ValueError("sync_batch_norm=true needs CUDA devices: set it to false, or train on GPUs")
            nn.SyncBatchNorm.convert_sync_batchnorm(self.model)  # type: ignore[no-untyped-call]
        with suppress(ValueError):  # raised where there are none: latents that never learn, which peers would wait for
            freeze_latents_(self.model)
        return DistributedDataParallel(self.model, device_ids=[self.device] if self.device.type == "cuda" else None)

    @property
    def position(self) -> Position:
        """The moment training has reached."""
        return Position(self.epoch, self.batch, len(self.batches), self.config.epochs)

    @property
    def is_done(self) -> bool:
        """Whether all epochs are behind it."""
        return self.epoch >= self.config.epochs

    @property
    def last_checkpoint(self) -> Path | None:
        """Where the run is saved, if it is."""
        return self.out / LAST if self.out else None

    def lr_at(self, position: Position) -> float:
        """The learning rate of the step that begins there."""
        return learning_rate(self.config.optimizer.lr, self.config.schedule, position)

    def begin_epoch(self) -> None:
        """Note when the epoch began, and tell the net how far training is."""
        self.began, self.seconds_before = time.perf_counter() - self.seconds_before, 0.0
        self.resumed_at = time.perf_counter()
        self.first_batch, self.seen_before = self.batch, self.meter.read(everywhere=False).total
        self._tell_progress()
        if self.batch == 0:  # an epoch that is gone on with began before
            at_epoch_(self.model)
        self.model.train()

    def steps(self) -> Iterator[int]:
        """Take the steps that the epoch still has, one at a time; yield how many are done in all."""
        self._capture_once()
        taking = self.captured.epoch(self.epoch, self.batch) if self.captured else self.plain_steps()
        while self.batch < len(self.batches):
            self.prepare_step()
            self.take(taking)
            if self.device.type == "cpu":
                self.check_finite()
            yield self.position.step

    def plain_steps(self) -> Iterator[None]:
        """The steps of the epoch, each taken when asked for."""
        self._seed(dataclasses.replace(self.position, batch=0))  # for loaders that shuffle by torch's random state
        return plain_steps(self.step, self.batches, self.epoch, self.batch)

    def _capture_once(self) -> None:
        if not self.config.in_graph or self.captured is not None:
            return
        try:
            self.captured = CapturedSteps([self.step], [cast("DeviceBatches", self.batches)])
        except RuntimeError as error:
            if not self.may_fall_back:
                raise
            reason = str(error).strip().split("\n")[0]
            warnings.warn(f"the step cannot be captured ({reason}): goes on with speed='compiled'", stacklevel=2)
            self.config = dataclasses.replace(self.config, speed="compiled")

    def prepare_step(self) -> None:
        """Set the learning rate, the randomness and the global masks of the step that comes."""
        lr = self.lr_at(self.position)
        if lr != self.lr:
            set_learning_rate(self.optimizer, lr)
            self.lr = lr
        self._renew_masks()
        self._seed(self.position)

    def _tell_progress(self) -> None:
        set_progress(self.model, self.epoch / self.config.epochs)
        if self.epoch == self.config.epochs - 1:
            end_ramps_(self.model)

    def _renew_masks(self) -> None:
        if not self.global_masks:
            return
        empty = {name for name, count in set_global_masks_(self.model, warn=False).items() if not count}
        if empty - self.told_empty:  # of each layer once
            warn_empty_layers(sorted(empty - self.told_empty))
            self.told_empty |= empty

    def _seed(self, position: Position) -> None:
        """Randomness in the net (dropout) and its images hangs on the step alone, so a resumed run draws the same."""
        seed = mixed(self.config.seed, position.step, self.place.rank)
        seed_generators(seed, self.device)
        if not self.config.in_graph:
            seed_others(seed)

    def take(self, taking: Iterator[None]) -> None:
        """Take the next step."""
        try:
            with self.in_words(), known_classes(f"batch {self.batch + 1}"):
                next(taking)
        except StopIteration:
            raise ValueError(f"the loader ended after {self.batch} of its {len(self.batches)} batches") from None
        self.batch += 1

    @contextmanager
    def in_words(self) -> Iterator[None]:
        """Have a step that is refused tell why, and the way out."""
        try:
            yield
        except ValueError as error:
            self.check_weights()  # a quantizer that ranks refuses weights gone bad: that is the story to tell
            if "more than 1 value per channel" in str(error):  # torch's words, which name no way out
                few, part = (" and accumulate", "part of a ") if self.config.accumulate > 1 else ("", "")
                raise ValueError(
                    f"batch norm cannot train on one image: choose data.batch_size{few} so that no {part}batch, the "
                    f"last one included, is that small ({part}batch {self.batch + 1} of {len(self.batches)} is)"
                ) from None
            raise
        except RuntimeError as error:
            decay = self.config.optimizer.weight_decay
            huge = max(self.lr, decay) > 1e30  # else a number of the model's own is meant
            if not huge or "converted to type float without overflow" not in str(error):  # torch's words
                raise
            raise NonFiniteError(
                f"the learning rate, now {self.lr}, or optimizer.weight_decay={decay} is "
                "more than a weight can hold: lower it, or what raises it (schedule.factor)"
            ) from None

    def check_finite(self) -> None:
        """Stop if the loss has left the finite; on a GPU this waits for it."""
        loss, step = float(self.meter.sums[3]), self.position.step
        check_finite(loss, self.model, self.step.refused, step=step, checkpoint=self.last_checkpoint)

    def check_weights(self) -> None:
        """Stop if loss or weights have left the finite."""
        self.check_finite()
        check_weights(self.model, step=self.position.step, checkpoint=self.last_checkpoint)

    def report(self, reporters: Sequence[Reporter]) -> None:
        """Tell the reporters how the epoch goes, once a second."""
        now = time.perf_counter()
        if not self.place.is_writer or now - self.reported_at < REPORT_SECONDS:
            return
        self.reported_at = now
        self.check_weights()  # behind a sign no loss shows that they have left the finite
        train, seconds = self.meter.read(everywhere=False), now - self.resumed_at
        pace = seconds / (self.batch - self.first_batch)
        record = StepRecord(
            epoch=self.epoch + 1,
            epochs=self.config.epochs,
            batch=self.batch,
            batches=len(self.batches),
            train=train,
            images_per_second=(train.total - self.seen_before) / seconds * self.place.world_size,
            seconds_left=pace * (self.config.epochs * len(self.batches) - self.position.step),
        )
        self.tell(record, reporters)

    def tell(self, record: StepRecord | EpochRecord, reporters: Sequence[Reporter]) -> None:
        """Give the reporters a record, in the one process that speaks."""
        if self.place.is_writer:
            for reporter in reporters:
                reporter(record)

    def finish_epoch(self, test: Iterable[tuple[Tensor, Tensor]] | None, seconds: float | None = None) -> EpochRecord:
        """Score the epoch, note it, and stand at the beginning of the next."""
        self.check_weights()
        self._renew_masks()
        number, scored = self.epoch + 1, None
        if test is not None and (number % self.config.evaluate_every == 0 or number == self.config.epochs):
            distributed.share_buffers(self.model)
            self._seed(self.position)  # for test images that are shuffled: a run that stopped just here draws the same
            scored = count_score(self.model, test, precision=self.config.precision)
            saved, of = self.last_checkpoint, " of the test images"
            check_finite(scored.loss_sum, self.model, step=self.position.step, checkpoint=saved, of=of)
        lr = self.lr_at(dataclasses.replace(self.position, batch=len(self.batches) - 1))
        took = time.perf_counter() - self.began if seconds is None else seconds
        record = EpochRecord(number, lr, self.meter.read(), scored, took)
        self.epochs.append(record)
        self.epoch, self.batch = number, 0
        self.meter.sums.zero_()
        return record


def _on_device(batches: Batches, device: torch.device) -> bool:
    """Whether a captured step can pick these batches on the model's device."""
    return hasattr(batches, "pick") and cast("DeviceBatches", batches).permutation(0).device == device


def _can_compile() -> bool:
    """Whether torch.compile has what it needs for a GPU: Triton, which in turn needs a C compiler."""
    compilers = ("cc", "gcc", "clang")
    return importlib.util.find_spec("triton") is not None and any(map(shutil.which, compilers))
