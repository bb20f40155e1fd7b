"""Train a stack: many small nets at once, so that together they fill a GPU that one leaves idle.

Every net has its own weights, optimizer, batches, counts and history; all are at the same step. On a GPU their steps
are one CUDA graph with a stream for each net. A net computes what it would compute alone, with the same kernels; runs
differ only as two runs alone differ, by the order of floating-point sums on a GPU. Nets in one graph draw random
numbers (dropout, stochastic bits) from one sequence, so these differ from those of a net alone.
"""

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from equalbits._files import remove_partial_files
from equalbits.training.batches import Batches, DeviceBatches
from equalbits.training.checkpoint_file import CheckpointError, Metadata, load_checkpoint, save_checkpoint
from equalbits.training.config import OptimizerConfig, ScheduleConfig, TrainConfig
from equalbits.training.cuda_graph import CudaGraphSteps
from equalbits.training.divergence import NonFiniteError
from equalbits.training.history import History, Reporter
from equalbits.training.loop import TrainStep, compile_forward, matmul_precision
from equalbits.training.losses import Loss, training_loss
from equalbits.training.randomness import preserved_rng
from equalbits.training.resume_checks import run_facts
from equalbits.training.save_and_resume import invalid_content, prefixed, restore_run, saved_state, with_prefix
from equalbits.training.stop_signals import InterruptedTraining, StopRequest, stop_requests
from equalbits.training.training_run import TrainingRun


class StackError(NonFiniteError):
    """Some nets diverged; the others were trained to the end.

    ``errors`` holds the error of each diverged net by its place in the stack; ``histories`` those of the others, and
    None.
    """

    def __init__(self, histories: Sequence[History | None], errors: Mapping[int, NonFiniteError]) -> None:
        first = min(errors)
        super().__init__(f"{len(errors)} of {len(histories)} nets in a stack diverged; number {first}: {errors[first]}")
        self.histories, self.errors = list(histories), dict(errors)


def train_stack(
    models: Sequence[nn.Module],
    loaders: Sequence[Batches],
    configs: Sequence[TrainConfig],
    *,
    test: Iterable[tuple[Tensor, Tensor]] | None = None,
    reporters: Sequence[Sequence[Reporter]] = (),
    teacher: nn.Module | None = None,
    checkpoint: Path | None = None,
) -> list[History]:
    """Train ``models[i]`` on ``loaders[i]`` with ``configs[i]`` for every i at once; return their histories.

    All have the same number of batches and the same :func:`shared_settings`. If nets diverge, the others are trained to
    the end, and then :class:`StackError` is raised. ``reporters[i]`` are called with the epochs of net i. All nets
    distil from one ``teacher``, which is none of them. ``checkpoint`` is a file that the stack is saved to, and resumed
    from if it exists; SIGTERM, SIGHUP and Ctrl-C then save and raise :class:`InterruptedTraining`. The state of a
    reporter with ``state_dict`` is saved and restored with its net.
    """
    if any(shared_settings(config) != shared_settings(configs[0]) for config in configs):
        raise ValueError("nets of a stack may differ in seed, optimizer, schedule and loss: these differ in more")
    if configs[0].distill.attention > 0:
        raise ValueError("nets of a stack have no attention maps: set distill.attention=0, or train each alone")
    with (
        ExitStack() as losses_end,
        matmul_precision(configs[0].precision),
        preserved_rng(models[0]),
        stop_requests(listen=checkpoint is not None) as stop,
    ):
        runs: list[TrainingRun] = []
        for model, loader, config in zip(models, loaders, configs, strict=True):
            facts = run_facts(model, loader, test, teacher) if checkpoint is not None else {}
            runs.append(TrainingRun(model.train(), loader, config, checkpoint=None, facts=facts))
        for run, of_net in zip(runs, reporters, strict=bool(reporters)):
            run.reporters = of_net
        checkpoints = _StackCheckpointer(runs, stop, checkpoint)
        checkpoints.resume()
        compiled = compile_forward(runs[0].config)
        losses: dict[float, Loss] = {}  # by what nets of a stack may differ in, so that the teacher is compiled once
        for run in runs:
            smoothing = run.config.label_smoothing
            if smoothing not in losses:
                losses[smoothing] = losses_end.enter_context(training_loss(run.model, teacher, run.config))
            run.step = TrainStep(run.model, run.optimizer, losses[smoothing], run.config, run.meter, compiled)
            run.step.average = run.average
            run.update_quantizers()
        graph = None
        if runs[0].config.uses_cuda_graph:
            graph = CudaGraphSteps([run.step for run in runs], [cast("DeviceBatches", run.batches) for run in runs])
        while active := [run for run in _healthy(runs) if not run.is_done]:
            for run in active:
                run.start_epoch()
            for _ in _steps(active, graph):
                checkpoints.save_if_due()
            began = min(run.epoch_began for run in active)  # earlier than now in a resumed epoch
            seconds = (time.perf_counter() - began) / len(active)
            for run in _healthy(active):
                with _left_out_if_diverged(run):
                    run.report(run.end_epoch(run.evaluate(test), seconds))
        if stop.signal_number:
            checkpoints.save_if_due()
        for run in runs:
            run.swap_average()
    histories = [run.history for run in runs]
    if errors := {place: run.error for place, run in enumerate(runs) if run.error}:
        raise StackError([None if place in errors else found for place, found in enumerate(histories)], errors)
    return histories


def shared_settings(config: TrainConfig) -> TrainConfig:
    """Return the settings in which nets of a stack must agree: all but seed, optimizer, schedule and loss."""
    free = {"seed": 0, "optimizer": OptimizerConfig(), "schedule": ScheduleConfig()}
    return dataclasses.replace(config, **free, label_smoothing=0.0, clip_norm=0.0)  # type: ignore[arg-type]


class _StackCheckpointer:
    """Keep the checkpoint of a stack in one file, so that its nets stay at the same step; without one, do nothing.

    Of nets that have diverged it holds the error alone.
    """

    def __init__(self, runs: Sequence[TrainingRun], stop: StopRequest, path: Path | None) -> None:
        self.runs, self.stop, self.path = runs, stop, path
        self.saved_at, self.seconds = time.perf_counter(), runs[0].config.checkpoint_seconds

    def save_if_due(self) -> None:
        """Save if it is time to; save and raise after a stop signal."""
        signal_number = self.stop.signal_number
        if self.path is None or not (signal_number or time.perf_counter() - self.saved_at >= self.seconds):
            return
        tensors: dict[str, Tensor] = {}
        nets: dict[str, Metadata] = {}
        for run in _healthy(self.runs):
            with _left_out_if_diverged(run):
                run.check_weights()
        for place, run in enumerate(self.runs):
            if run.error is None:
                found, nets[str(place)] = saved_state(run)
                tensors |= prefixed(f"{place}.", found)
                for reporter in _stateful(run):
                    tensors |= prefixed(f"{place}.memory.", reporter.state_dict())
        diverged = {str(place): str(run.error) for place, run in enumerate(self.runs) if run.error}
        save_checkpoint(self.path, tensors, {"stack": nets, "diverged": diverged})
        self.saved_at = time.perf_counter()
        if signal_number:
            raise InterruptedTraining(signal_number, self.path)

    def resume(self) -> None:
        """Resume from the file if there is one."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        remove_partial_files(self.path.parent)
        if not self.path.exists():
            return
        tensors, metadata = load_checkpoint(self.path)
        with invalid_content(self.path):
            nets, diverged = metadata.get("stack", {}), metadata.get("diverged", {})
            if {*nets, *diverged} != set(map(str, range(len(self.runs)))):
                raise CheckpointError(f"{self.path} is of another stack: delete it to train again, or name another")
            for place, run in enumerate(self.runs):
                if str(place) in diverged:
                    run.error = NonFiniteError(diverged[str(place)])
                    continue
                restore_run(run, with_prefix(f"{place}.", tensors), nets[str(place)], self.path)
                for reporter in _stateful(run):
                    reporter.load_state_dict(with_prefix(f"{place}.memory.", tensors))


def _stateful(run: TrainingRun) -> list[Any]:
    """Return the reporters whose counts are saved with the net."""
    return [reporter for reporter in run.reporters if hasattr(reporter, "state_dict")]


def _healthy(runs: Iterable[TrainingRun]) -> list[TrainingRun]:
    return [run for run in runs if run.error is None]


@contextmanager
def _left_out_if_diverged(run: TrainingRun) -> Iterator[None]:
    """Record that a net has diverged instead of raising, so that the others train on without it."""
    try:
        yield
    except NonFiniteError as error:
        run.error = error


def _steps(active: Sequence[TrainingRun], graph: CudaGraphSteps | None) -> Iterator[None]:
    """Take the steps that the epoch still has, of all nets in turn; a net that diverges is left out from then on.

    With a graph, divergence is noticed when the epoch ends.
    """
    first = active[0]
    replays = graph.epoch(first.epoch, first.batch) if graph is not None else None
    loaded = {run: run.load_batches() for run in active} if graph is None else {}
    for _ in range(first.batch, len(first.batches)):
        healthy = _healthy(active)
        for run in healthy:
            run.prepare_step()
            if replays is None:
                with _left_out_if_diverged(run):
                    images, labels = run.next_batch(loaded[run])
                    with run.explain_errors():
                        run.step(images, labels)
                    run.finish_step()
        if replays is not None:
            with first.explain_errors():
                next(replays)
            for run in healthy:
                run.batch += 1
        yield
