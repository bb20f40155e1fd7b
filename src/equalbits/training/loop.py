"""The training loop: schedule, forward, loss, backward, optimizer step, evaluation and checkpoints."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.nn.parallel import DistributedDataParallel

from equalbits.nn import after_step_, ahead_ranker, check_module, layers_with_hook, penalty
from equalbits.training import distributed
from equalbits.training.batches import AnyBatches, as_batches, check_iterable
from equalbits.training.checkpoint_file import LAST
from equalbits.training.compilation import compile_separately
from equalbits.training.config import TrainConfig
from equalbits.training.evaluation import Meter, as_logits, check_labels, count_correct
from equalbits.training.history import History, Reporter
from equalbits.training.losses import Loss, mix_with_reversed, mixup_share, training_loss
from equalbits.training.optimizer import backward_updates
from equalbits.training.progress import ProgressBar
from equalbits.training.randomness import preserved_rng
from equalbits.training.resume_checks import Resume, run_facts
from equalbits.training.save_and_resume import Checkpointer
from equalbits.training.stop_signals import stop_requests
from equalbits.training.training_run import TrainingRun
from equalbits.training.weight_average import WeightAverage

#: Called with the model and the number of finished steps.
Watcher = Callable[[nn.Module, int], None]


def train(
    model: nn.Module,
    batches: AnyBatches,
    config: TrainConfig | Mapping[str, object],
    *,
    test: Iterable[tuple[Tensor, Tensor]] | None = None,
    watchers: Sequence[Watcher] = (),
    reporters: Sequence[Reporter] | Callable[[History], Sequence[Reporter]] = (),
    teacher: nn.Module | None = None,
    out: Path | str | None = None,
    progress: bool | str = False,
    resume: Resume = Resume(),  # noqa: B008 (it is frozen)
) -> History:
    """Train ``model`` in place and return the history of its epochs.

    ``batches`` is a :class:`equalbits.data.Loader`, or any loader that can be iterated again. Several processes started
    by ``torchrun`` share each batch.

    - ``test``: batches that are scored every ``config.evaluate_every`` epochs, and after the last
    - ``watchers``: called as ``f(model, step)`` before the first step and after every step
    - ``reporters``: called with a record once a second and after every epoch; or a function that returns them, called
      with the history so far
    - ``teacher``: a net to distil from, as ``config.distill`` says
    - ``out``: a directory for checkpoints. A run that finds one there resumes, on a CPU with the same bits as if it had
      never stopped. SIGTERM, SIGHUP and Ctrl-C save and raise :class:`InterruptedTraining`.
    - ``progress``: True, or a title, to show a progress bar in a terminal and a line per epoch elsewhere
    - ``resume``: notes to store in the checkpoints, and whether a run may resume with other settings, data, quantizers
      or another teacher than its checkpoint was made with; loaders with a method ``fingerprint`` are compared
    """
    config = TrainConfig.of(config, "config")
    check_module(model)
    if test is not None:
        check_iterable(test)
    checkpoint = Path(out) / LAST if out is not None else None
    with (
        matmul_precision(config.precision),
        preserved_rng(model),
        training_loss(model, teacher, config) as loss,
        distributed.explain_lost_peer(checkpoint),
        stop_requests(listen=checkpoint is not None) as stop,
        ProgressBar(title=progress if isinstance(progress, str) else type(model).__name__, quiet=not progress) as bar,
    ):
        facts = run_facts(model, batches, test, teacher) if checkpoint else {}
        run = TrainingRun(model, as_batches(batches), config, checkpoint=checkpoint, facts=facts, resume=resume)
        checkpoints = Checkpointer(run, stop)
        checkpoints.resume()
        step = run.step = TrainStep(run.parallel_model(), run.optimizer, loss, run.config, run.meter)
        step.average = run.average
        if watchers:
            step.updates = None  # they may read the gradients
        run.update_quantizers()
        run.reporters = [bar, *(reporters(run.history) if callable(reporters) else reporters)]
        for watcher in watchers:
            watcher(model, run.position.step)
        while not run.is_done:
            run.start_epoch()
            with checkpoints.save_if_interrupted():
                replays = run.replay_graph()  # None unless each step is one CUDA graph
                loaded = run.load_batches() if replays is None else iter(())
                while run.batch < len(run.batches):
                    run.prepare_step()  # learning rate of the schedule, random seed, global pruning masks
                    batch = () if replays else run.next_batch(loaded)
                    with run.explain_errors():
                        if replays:
                            next(replays)  # picks, augments and trains on the next batch, all on the device
                        else:
                            step(*batch)  # forward, loss, backward, optimizer
                    run.finish_step()
                    for watcher in watchers:
                        watcher(model, run.position.step)
                    run.report_progress()
                    checkpoints.save_if_due()
                score = run.evaluate(checkpoints.interruptible(test) if test is not None else None)
                record = run.end_epoch(score)
            run.report(record)
            checkpoints.save_epoch(record)
        run.swap_average()
        return run.history


class TrainStep:
    """One optimizer step: forward, loss, backward, update; correct predictions are counted into ``meter``.

    The batch is split into ``config.accumulate`` parts to save memory. Only full batches run compiled: a smaller last
    batch would need a second compilation. On a CPU a step with a non-finite loss is skipped, and ``skipped_images``
    holds its images. Several steps may share one ``compiled`` forward (:func:`compile_forward`).
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        config: TrainConfig,
        meter: Meter,
        compiled: "CompiledForward | None" = None,
    ) -> None:
        self.model, self.optimizer, self.loss, self.config, self.meter = model, optimizer, loss, config, meter
        self.compiled = compiled or compile_forward(config)
        self.average: WeightAverage | None = None
        self.full_size = self.part_size = 0
        self.skipped_images: Tensor | None = None
        self.in_progress = False  # the weights are then between two states, and must not be saved
        self.penalised = layers_with_hook(model, "penalty")
        self.has_after_step = bool(layers_with_hook(model, "after_step_"))
        dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
        self.ranker = ahead_ranker(model, dtype) if config.uses_cuda_graph else None
        self.updates = backward_updates(list(self.ranker.layers), optimizer, config) if self.ranker else None

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss of some images, and their counts (:func:`count_correct`)."""
        share = mixup_share(self.config.mixup, images.device) if self.config.mixup else None
        if share is not None:
            images = mix_with_reversed(images, share)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            output = self.model(images)
        logits, targets = as_logits(output), labels
        if not torch.compiler.is_compiling():
            check_labels(labels, logits)
        if share is not None:
            targets = mix_with_reversed(nnf.one_hot(labels, logits.shape[1]), share)
        loss = self.loss(logits, targets, images)
        counts = count_correct(logits, labels, loss * len(labels))
        return (loss + penalty(self.penalised) if self.penalised else loss), counts

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        """Train on one batch."""
        self.in_progress = True
        self.full_size = max(self.full_size, len(labels))
        if self.config.speed != "plain" and images.dim() == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        forward = self.compiled if self.compiled and len(labels) == self.full_size else TrainStep.forward
        weight = distributed.weight_of_part(len(labels), images.device)
        count = min(self.config.accumulate, len(labels))
        parts = list(zip(images.chunk(count), labels.chunk(count), strict=True))
        self.optimizer.zero_grad(set_to_none=True)
        for number, (part, part_labels) in enumerate(parts, start=1):
            self.part_size = len(part_labels)
            with self._no_gradient_sync(number < len(parts)):
                with self.ranker or nullcontext(), self.updates or nullcontext():
                    loss, counts = forward(self, part, part_labels)
                self.meter.sums += counts
                if loss.device.type == "cpu" and not math.isfinite(loss.item()):
                    self.skipped_images = part
                    self.meter.sums[3] += loss.detach()  # counts leave out the penalty, which may be what is not finite
                    return
                if len(parts) > 1 or not isinstance(weight, float):  # else the factor is 1
                    loss = loss * (weight * (len(part_labels) / len(labels)))
                with torch.autograd.set_multithreading_enabled(False):  # in another thread cuBLAS has another workspace
                    loss.backward()  # type: ignore[no-untyped-call]
        if self.updates is not None:
            self.updates.check()
        if self.config.clip_norm > 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimizer.step()
        if self.has_after_step:
            after_step_(self.model)
        if self.average is not None:
            self.average.update()
        self.in_progress = False

    def _no_gradient_sync(self, more_parts: bool) -> AbstractContextManager[None]:
        """Skip DDP's gradient all-reduce for all parts of a batch but the last."""
        if more_parts and isinstance(self.model, DistributedDataParallel):
            return cast("AbstractContextManager[None]", self.model.no_sync())
        return nullcontext()


CompiledForward = Callable[[TrainStep, Tensor, Tensor], tuple[Tensor, Tensor]]


def compile_forward(config: TrainConfig) -> CompiledForward | None:
    """Compile :meth:`TrainStep.forward` if ``config.speed`` asks for it; backward is compiled with it."""
    return compile_separately(TrainStep.forward) if config.speed in ("compiled", "captured") else None


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Allow TF32 products on a GPU unless ``precision`` is fp32; restore the caller's setting afterwards."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
