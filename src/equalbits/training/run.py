"""Where a run stands: model, optimizer, position and counts, all that a checkpoint must hold."""

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from equalbits.training import distributed
from equalbits.training.checkpoint import (
    BEST,
    LAST,
    CheckpointError,
    load_checkpoint,
    load_optimizer,
    optimizer_tensors,
    save_checkpoint,
    sweep_leftovers,
)
from equalbits.training.config import TrainConfig
from equalbits.training.distill import Loss
from equalbits.training.history import EpochRecord, History, Reporter, StepRecord
from equalbits.training.interruption import InterruptedTraining, check_finite
from equalbits.training.schedule import Position, learning_rate
from equalbits.training.score import Meter, evaluate
from equalbits.training.step import (
    Batches,
    CapturedSteps,
    DeviceBatches,
    Step,
    make_optimizer,
    plain_steps,
    set_learning_rate,
)

# A host that asks a GPU for its counts has to wait for it; once a second is often enough for a person.
REPORT_SECONDS = 1.0


class Run:
    """One training run: takes steps, keeps count, saves, and goes on from what was saved."""

    def __init__(self, model: nn.Module, batches: Batches, config: TrainConfig, loss: Loss, out: Path | None) -> None:
        if len(batches) == 0:
            raise ValueError("there is no batch to train on: the training data is empty or smaller than one batch")
        self.model, self.batches, self.out = model, batches, out
        self.place = distributed.place()
        self.alone = self.place.world_size == 1
        self.device = next(iter(model.parameters())).device
        can_capture = self.alone and hasattr(batches, "pick") and not config.distill.wants_teacher
        self.config = config.settled(self.device.type, can_capture=can_capture)
        if self.config.speed == "captured" and not can_capture:
            raise ValueError("speed='captured' needs one process, data on the device and no teacher: use 'compiled'")
        if self.config.speed != "plain":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = make_optimizer(model, config.optimizer, capture=self.config.speed == "captured")
        self.meter = Meter(self.device)
        self.epoch, self.batch = 0, 0
        self.epochs: list[EpochRecord] = []
        self.saved_at = self.reported_at = time.perf_counter()
        self.resume()
        self.step = Step(self._wrapped(), self.optimizer, loss, self.config, self.meter)
        self.captured: CapturedSteps | None = None
        self.lr = math.nan

    def _wrapped(self) -> nn.Module:
        if self.alone:
            return self.model
        if self.config.sync_batch_norm:
            nn.SyncBatchNorm.convert_sync_batchnorm(self.model)  # type: ignore[no-untyped-call]
        return DistributedDataParallel(self.model, device_ids=[self.device] if self.device.type == "cuda" else None)

    @property
    def position(self) -> Position:
        """The moment training has reached."""
        return Position(self.epoch, self.batch, len(self.batches), self.config.epochs)

    def lr_at(self, position: Position) -> float:
        """The learning rate of the step that begins there."""
        return learning_rate(self.config.optimizer.lr, self.config.schedule, position)

    def steps(self) -> Iterator[int]:
        """Take the steps that the epoch still has, one at a time; yield how many are done in all."""
        if self.config.speed == "captured" and self.captured is None:
            self.captured = CapturedSteps([self.step], [cast("DeviceBatches", self.batches)])
        if self.captured is not None:
            taking = self.captured.epoch(self.epoch, self.batch)
        else:
            taking = plain_steps(self.step, self.batches, self.epoch, self.batch)
        while self.batch < len(self.batches):
            self.prepare_step()
            next(taking)
            self.batch += 1
            if self.device.type == "cpu":
                self.check_finite()
            yield self.position.step

    def prepare_step(self) -> None:
        """Set the learning rate and the randomness of the step that comes."""
        lr = self.lr_at(self.position)
        if lr != self.lr:
            set_learning_rate(self.optimizer, lr)
            self.lr = lr
        # Randomness inside the net (dropout) hangs on the step alone, so a resumed run draws the same.
        torch.manual_seed(_mixed(self.config.seed, self.position.step, self.place.rank))

    def check_finite(self) -> None:
        """Stop if the loss has left the finite; on a GPU this waits for it."""
        last = self.out / LAST if self.out else None
        check_finite(float(self.meter.sums[3]), self.model, step=self.position.step, checkpoint=last)

    def report(self, reporters: Sequence[Reporter], began: float, seen_before: int) -> None:
        """Tell the reporters how the epoch goes, once a second."""
        now = time.perf_counter()
        if not self.place.is_writer or now - self.reported_at < REPORT_SECONDS:
            return
        self.reported_at = now
        self.check_finite()
        train = self.meter.read(everywhere=False)
        speed = (train.total - seen_before) / (now - began)
        images_an_epoch = train.total / self.batch * len(self.batches)
        left = images_an_epoch * (self.config.epochs - self.epoch) - train.total
        record = StepRecord(
            epoch=self.epoch + 1,
            epochs=self.config.epochs,
            batch=self.batch,
            batches=len(self.batches),
            train=train,
            images_per_second=speed * self.place.world_size,
            seconds_left=left / speed,
        )
        for reporter in reporters:
            reporter(record)

    def finish_epoch(
        self, test: Iterable[tuple[Tensor, Tensor]] | None, reporters: Sequence[Reporter], seconds: float
    ) -> None:
        """Score the epoch, note it, keep the model if it is the best so far."""
        self.check_finite()
        number, scored = self.epoch + 1, None
        if test is not None and (number % self.config.evaluate_every == 0 or number == self.config.epochs):
            distributed.share_buffers(self.model)
            scored = evaluate(self.model, test, precision=self.config.precision)
        lr = self.lr_at(dataclasses.replace(self.position, batch=len(self.batches) - 1))
        record = EpochRecord(number, lr, self.meter.read(), scored, seconds)
        self.epochs.append(record)
        self.epoch, self.batch = number, 0
        self.meter.sums.zero_()
        best = History(tuple(self.epochs)).best
        if self.out is not None and self.place.is_writer and best is record:
            save_checkpoint(self.out / BEST, _prefixed("model.", self.model.state_dict()), self.facts())
        if self.place.is_writer:
            for reporter in reporters:
                reporter(record)

    def stop_if(self, signal_number: int | None) -> None:
        """Save and stop if any process was asked to."""
        if distributed.any_of(signal_number is not None, self.device) and self.out is not None:
            self.save()
            raise InterruptedTraining(signal_number or 15, self.out / LAST)

    def save_if_due(self) -> None:
        """Save if the last time is long enough ago."""
        if self.out is not None and time.perf_counter() - self.saved_at >= self.config.checkpoint_seconds:
            self.save()

    def facts(self) -> dict[str, Any]:
        """What a checkpoint says in words."""
        return {
            "config": dataclasses.asdict(self.config),
            "epoch": self.epoch,
            "batch": self.batch,
            "batches": len(self.batches),
            "history": [record.as_dict() for record in self.epochs],
        }

    def save(self) -> None:
        """Write the checkpoint, unless the numbers have gone bad since the last one."""
        self.saved_at = time.perf_counter()
        if self.out is None or not self.place.is_writer:
            return
        self.check_finite()
        moved, plain = optimizer_tensors(self.optimizer)
        tensors = _prefixed("model.", self.model.state_dict()) | _prefixed("optimizer.", moved)
        tensors["meter"] = self.meter.sums
        save_checkpoint(self.out / LAST, tensors, {**self.facts(), "optimizer": plain})

    def resume(self) -> None:
        """Go on from the checkpoint in ``out`` where there is one made with the same settings."""
        if self.out is None:
            return
        if self.place.is_writer:
            self.out.mkdir(parents=True, exist_ok=True)
            sweep_leftovers(self.out)
        distributed.wait_for_all()
        path = self.out / LAST
        if not path.exists():
            return
        tensors, facts = load_checkpoint(path)
        _check_same_settings(path, facts, self.facts())
        self.model.load_state_dict(_with_prefix("model.", tensors))
        load_optimizer(self.optimizer, _with_prefix("optimizer.", tensors), facts["optimizer"])
        self.meter.sums.copy_(tensors["meter"])
        self.epoch, self.batch = facts["epoch"], facts["batch"]
        self.epochs = [EpochRecord.from_dict(record) for record in facts["history"]]


def _check_same_settings(path: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    free = ("checkpoint_seconds", "evaluate_every", "speed")  # they change no result
    for name, value in {**now["config"], "batches": now["batches"]}.items():
        was = saved["batches"] if name == "batches" else saved["config"].get(name)
        if name not in free and was != _plain(value):
            raise CheckpointError(
                f"{path} was made with {name}={was}, this run has {name}={_plain(value)}: "
                f"use the same settings to go on, or another folder to start anew"
            )


def _plain(value: Any) -> Any:
    """A setting as JSON gives it back."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _mixed(seed: int, step: int, rank: int) -> int:
    """A seed for this step of this process, far from those of its neighbours."""
    return (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB) % 2**63
