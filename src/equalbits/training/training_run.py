"""State of a training run: model, optimizer, position, counts; and the parts of an epoch around its steps."""

import dataclasses
import math
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from equalbits.nn import (
    PrunedQuantizer,
    at_epoch_,
    end_ramps_,
    freeze_latents_,
    recompute_convolutions_,
    set_global_masks_,
    set_progress,
)
from equalbits.training import distributed
from equalbits.training.batches import Batches, DeviceBatches, images_and_labels
from equalbits.training.checkpoint_file import Metadata
from equalbits.training.compilation import can_compile
from equalbits.training.config import TrainConfig
from equalbits.training.cuda_graph import CudaGraphSteps
from equalbits.training.divergence import NonFiniteError, check_finite, check_weights
from equalbits.training.evaluation import LabelError, Meter, Score, count_score, device_of
from equalbits.training.history import EpochRecord, History, Reporter, StepRecord
from equalbits.training.optimizer import make_optimizer, set_learning_rate
from equalbits.training.randomness import seed_generators, step_seed
from equalbits.training.resume_checks import Resume
from equalbits.training.schedule import Position, learning_rate
from equalbits.training.weight_average import WeightAverage

if TYPE_CHECKING:
    from equalbits.training.loop import TrainStep

# Reading counts from a GPU makes the host wait for it, so progress is reported once a second.
REPORT_SECONDS = 1.0


class TrainingRun:
    """One model in training: its optimizer, position, counts and finished epochs."""

    step: "TrainStep"  # set by the loop, after a checkpoint is loaded: DistributedDataParallel copies the model

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        config: TrainConfig,
        *,
        checkpoint: Path | None,
        facts: Metadata,
        resume: Resume = Resume(),  # noqa: B008 (it is frozen)
    ) -> None:
        if len(batches) == 0:
            raise ValueError("there is no batch to train on: the training data is empty or smaller than one batch")
        self.model, self.batches = model, batches
        self.process = distributed.current_rank()
        self.alone = self.process.world_size == 1
        self.device = device_of(model)
        on_device = hasattr(batches, "pick") and cast("DeviceBatches", batches).permutation(0).device == self.device
        # Attention maps leave the teacher's forward through hooks, which a graph does not call.
        can_capture = self.alone and config.distill.attention == 0 and on_device
        self.config = config.resolve_auto(self.device.type, can_capture=can_capture, can_compile=can_compile())
        self.may_fall_back = config.speed == "auto"
        if self.config.uses_cuda_graph and not can_capture:
            raise ValueError(
                f"speed={self.config.speed!r} needs one process, data on a GPU and distill.attention=0: use 'compiled'"
            )
        if not recompute_convolutions_(model, config.memory == "small") and config.memory == "small":
            raise ValueError(
                "memory='small' needs a binary ResNet with PReLU, which can compute its convolutions again: set it to "
                "'normal', and accumulate to split the batch"
            )
        if self.config.speed != "plain":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        decay = config.weight_average
        self.average = WeightAverage(model, decay) if decay else None
        self.optimizer = make_optimizer(model, config.optimizer, capture=self.config.uses_cuda_graph)
        self.meter = Meter(self.device)
        self.epoch, self.batch = 0, 0
        self.epochs: list[EpochRecord] = []
        self.reported_at = self.epoch_began = time.perf_counter()
        self.lr = math.nan
        self.graph: CudaGraphSteps | None = None
        self.warned_empty: set[str] = set()
        self.checkpoint, self.resume, self.facts, self.changes = checkpoint, resume, facts, list[str]()
        self.reporters: Sequence[Reporter] = ()
        self.error: NonFiniteError | None = None  # of a net that diverged in a stack
        self.has_global_masks = any(
            isinstance(module, PrunedQuantizer) and module.scope == "global" for module in model.modules()
        )

    @property
    def position(self) -> Position:
        """Number of finished epochs and batches."""
        return Position(self.epoch, self.batch, len(self.batches), self.config.epochs)

    @property
    def is_done(self) -> bool:
        """True once all epochs are finished."""
        return self.epoch >= self.config.epochs

    @property
    def history(self) -> History:
        """All finished epochs."""
        return History(tuple(self.epochs))

    def parallel_model(self) -> nn.Module:
        """Return the model, wrapped in DistributedDataParallel if there are several processes."""
        if self.alone:
            return self.model
        if self.config.sync_batch_norm:
            if self.device.type != "cuda":
                raise ValueError("sync_batch_norm=true needs CUDA devices: set it to false, or train on GPUs")
            nn.SyncBatchNorm.convert_sync_batchnorm(self.model)  # type: ignore[no-untyped-call]
        freeze_latents_(self.model)  # DDP would wait for gradients that these latents never get
        return DistributedDataParallel(self.model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def update_quantizers(self) -> None:
        """Set the quantizers' progress and the global masks, so that watchers see the net of the first step."""
        if not self.is_done:
            set_progress(self.model, self.epoch / self.config.epochs)
            if self.epoch == self.config.epochs - 1:
                end_ramps_(self.model)
            self._set_masks()

    def start_epoch(self) -> None:
        """Start the clock, and pass the progress of training to the quantizers."""
        self.update_quantizers()
        if self.batch == 0:  # not in a resumed epoch
            self.epoch_began = time.perf_counter()
            at_epoch_(self.model)
        self.model.train()

    def replay_graph(self) -> Iterator[None] | None:
        """Return an iterator that replays a step as a CUDA graph, captured once; None if steps run without a graph."""
        if self.config.uses_cuda_graph and self.graph is None:
            try:
                self.graph = CudaGraphSteps([self.step], [cast("DeviceBatches", self.batches)])
            except RuntimeError as error:
                if not self.may_fall_back:
                    raise
                reason = str(error).strip().split("\n")[0]
                warnings.warn(f"the step cannot be captured ({reason}): continuing with speed='compiled'", stacklevel=3)
                self.config = dataclasses.replace(self.config, speed="compiled")
        return self.graph.epoch(self.epoch, self.batch) if self.graph else None

    def load_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the batches that the epoch still has."""
        self._seed(dataclasses.replace(self.position, batch=0))  # for loaders that shuffle by torch's random state
        return self.batches.epoch(self.epoch, self.batch)

    def prepare_step(self) -> None:
        """Set the learning rate, the global masks and the random seed of the next step."""
        lr = learning_rate(self.config.optimizer.lr, self.config.schedule, self.position)
        if lr != self.lr:
            set_learning_rate(self.optimizer, lr)
            self.lr = lr
        self._set_masks()
        self._seed(self.position)

    def next_batch(self, loaded: Iterator[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return the next batch, validated, on the model's device."""
        try:
            batch = next(loaded)
        except StopIteration:
            raise ValueError(f"the loader ended after {self.batch} of its {len(self.batches)} batches") from None
        images, labels = images_and_labels(batch, f"batch {self.batch + 1}")
        if len(labels) == 0:
            raise ValueError(f"batch {self.batch + 1} holds no image: leave it out of the loader")
        return images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def finish_step(self) -> None:
        """Count the step; on a CPU, raise if its loss was not finite."""
        self.batch += 1
        if self.device.type == "cpu":
            self.check_finite()

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Add the batch, the cause and the way out to errors of a step."""
        try:
            yield
        except NonFiniteError:
            raise
        except LabelError as error:
            raise ValueError(f"batch {self.batch + 1}: {error}") from None
        except ValueError as error:
            self.check_weights()  # a quantizer that ranks rejects NaN weights: report the divergence instead
            if self.step.part_size == 1 and any(isinstance(module, _BatchNorm) for module in self.model.modules()):
                setting, part = (" and accumulate", "part of a ") if self.config.accumulate > 1 else ("", "")
                raise ValueError(
                    f"batch norm cannot train on one image: choose data.batch_size{setting} so that no {part}batch, "
                    f"the last one included, is that small ({part}batch {self.batch + 1} of {len(self.batches)} is: "
                    f"{error})"
                ) from None
            raise

    def check_finite(self) -> None:
        """Raise if the loss is not finite; this waits for a GPU."""
        loss, images = float(self.meter.sums[3]), self.step.skipped_images
        check_finite(loss, self.model, images, step=self.position.step, checkpoint=self.checkpoint)

    def check_weights(self) -> None:
        """Raise if the loss or a weight is not finite."""
        self.check_finite()
        check_weights(self.model, step=self.position.step, checkpoint=self.checkpoint)

    def report_progress(self) -> None:
        """Report the progress of the epoch, once a second."""
        now = time.perf_counter()
        if not self.process.is_writer or now - self.reported_at < REPORT_SECONDS:
            return
        self.reported_at = now
        self.check_weights()  # behind a sign the loss does not show NaN
        seconds_per_step = (now - self.epoch_began) / self.batch
        record = StepRecord(
            epoch=self.epoch + 1,
            epochs=self.config.epochs,
            batch=self.batch,
            batches=len(self.batches),
            train=self.meter.read(all_processes=False),
            images_per_second=self.step.full_size * self.process.world_size / seconds_per_step,
            seconds_left=seconds_per_step * (self.config.epochs * len(self.batches) - self.position.step),
        )
        self.report(record)

    def report(self, record: StepRecord | EpochRecord) -> None:
        """Pass a record to the reporters, in the process that writes."""
        if self.process.is_writer:
            for reporter in self.reporters:
                reporter(record)

    def evaluate(self, test: Iterable[tuple[Tensor, Tensor]] | None) -> Score | None:
        """Check the weights after an epoch and score the model; None in epochs that are not scored."""
        self.check_weights()
        self._set_masks()
        number = self.epoch + 1
        if test is None or (number % self.config.evaluate_every and number != self.config.epochs):
            return None
        with self.averaged():
            distributed.share_buffers(self.model)
            self._seed(self.position)  # for shuffled test images: a run resumed here draws the same
            score = count_score(self.model, test, precision=self.config.precision)
        step, checkpoint = self.position.step, self.checkpoint
        check_finite(score.loss_sum, self.model, step=step, checkpoint=checkpoint, of=" of the test images")
        return score

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the averaged weights into the model, if there is an average, and the current ones back afterwards."""
        self.swap_average()
        try:
            yield
        finally:
            self.swap_average()

    def swap_average(self) -> None:
        """Exchange the weights and their average, if there is one; global masks follow."""
        if self.average is not None:
            self.average.swap()
            self._set_masks()

    def end_epoch(self, score: Score | None, seconds: float | None = None) -> EpochRecord:
        """Record the epoch, and move to the start of the next."""
        last_step = dataclasses.replace(self.position, batch=len(self.batches) - 1)
        lr = learning_rate(self.config.optimizer.lr, self.config.schedule, last_step)
        seconds = time.perf_counter() - self.epoch_began if seconds is None else seconds
        record = EpochRecord(self.epoch + 1, lr, self.meter.read(), score, seconds)
        self.epochs.append(record)
        self.epoch, self.batch = self.epoch + 1, 0
        self.meter.sums.zero_()
        return record

    def _set_masks(self) -> None:
        if self.has_global_masks:
            set_global_masks_(self.model, warned=self.warned_empty)

    def _seed(self, position: Position) -> None:
        """Seed dropout and loaders by the step alone, so that a resumed run draws the same."""
        seed = step_seed(self.config.seed, position.step, self.process.rank)
        seed_generators(seed, self.device, for_loader=not self.config.uses_cuda_graph)
