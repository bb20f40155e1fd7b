"""Seeds side by side: many small nets trained at once, so that together they fill a GPU that one leaves idle.

Every net has its own weights, optimizer, batches, counts and history; they share the moment. On a GPU all their steps
are one CUDA graph with a stream for each net. A net computes what it would compute alone, with the same kernels; runs
differ only as two runs alone differ, by the order in which a GPU adds up. Nets in one graph that draw random numbers
inside (dropout, stochastic bits) draw them from one sequence, so theirs are others than alone.
"""

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from torch import Tensor, nn

from equalbits.training.config import OptimizerConfig, ScheduleConfig, TrainConfig
from equalbits.training.cuda_graph import CapturedSteps, DeviceBatches
from equalbits.training.distill import label_loss
from equalbits.training.history import History, Reporter
from equalbits.training.loop import own_numerics
from equalbits.training.randomness import own_randomness
from equalbits.training.run import Run
from equalbits.training.stack_saver import Memory, StackSaver
from equalbits.training.step import Batches
from equalbits.training.stop_signals import NonFiniteError, stop_requests


class StackError(NonFiniteError):
    """Some nets left the finite; the others went on to the end.

    ``errors`` tells of each that did, by its place in the stack; ``histories`` holds those of the others, and None.
    """

    def __init__(self, histories: Sequence[History | None], errors: Mapping[int, NonFiniteError]) -> None:
        first = min(errors)
        super().__init__(
            f"{len(errors)} of {len(histories)} nets side by side diverged; number {first}: {errors[first]}"
        )
        self.histories, self.errors = list(histories), dict(errors)


def train_stack(
    models: Sequence[nn.Module],
    loaders: Sequence[Batches],
    config: TrainConfig | Sequence[TrainConfig],
    *,
    seeds: Sequence[int],
    test: Iterable[tuple[Tensor, Tensor]] | None = None,
    reporters: Sequence[Sequence[Reporter]] = (),
    checkpoint: Path | None = None,
    memories: Sequence[Memory] = (),
) -> list[History]:
    """Train ``models[i]`` on ``loaders[i]`` with ``seeds[i]`` for every i at once; return their histories.

    All share the settings, or each has its own, which must agree in what :func:`shared` leaves. If nets diverge the
    others go on, and at the end :class:`StackError` is raised. With ``checkpoint``, a file, all are saved there while
    they train, and a stack that finds it goes on from it; SIGTERM, SIGHUP and Ctrl-C then save and raise
    :class:`InterruptedTraining`. What ``memories[i]`` has counted of net i is saved and put back with it.
    """
    configs = [config] * len(models) if isinstance(config, TrainConfig) else list(config)
    _check(models, loaders, configs, seeds)
    told = reporters or [()] * len(models)
    listen = checkpoint is not None
    with own_numerics(configs[0].precision), own_randomness(models[0]), stop_requests(listen=listen) as stop:
        runs = [
            Run(model.train(), loader, dataclasses.replace(each, seed=seed), label_loss(each), None)
            for model, loader, each, seed in zip(models, loaders, configs, seeds, strict=True)
        ]
        saver = StackSaver(runs, checkpoint, memories)
        errors = saver.resume()
        for run in runs:
            run.make_step()
        captured = None
        if runs[0].config.in_graph:
            captured = CapturedSteps([run.step for run in runs], [cast("DeviceBatches", run.batches) for run in runs])
        while going := {place: run for place, run in enumerate(runs) if place not in errors and not run.is_done}:
            for run in going.values():
                run.begin_epoch()
            for _ in _steps(going, errors, captured):
                saver.save_or_stop(errors, stop.signal_number)
            began = min(run.began for run in going.values())  # before now, where an earlier call began the epoch
            seconds = (time.perf_counter() - began) / len(going)
            for place, run in going.items():
                try:
                    if place not in errors:
                        run.tell(run.finish_epoch(test, seconds), told[place])
                except NonFiniteError as error:
                    errors[place] = error
        if stop.signal_number:
            saver.save_or_stop(errors, stop.signal_number)
    histories = [History(tuple(run.epochs)) for run in runs]
    if errors:
        raise StackError([None if place in errors else found for place, found in enumerate(histories)], errors)
    return histories


def shared(config: TrainConfig) -> TrainConfig:
    """What the settings of nets side by side must agree in: all but seed, optimizer, schedule and what the loss is."""
    free = {"seed": 0, "optimizer": OptimizerConfig(), "schedule": ScheduleConfig()}
    return dataclasses.replace(config, **free, label_smoothing=0.0, clip_norm=0.0)  # type: ignore[arg-type]


def _check(
    models: Sequence[nn.Module], loaders: Sequence[Batches], configs: Sequence[TrainConfig], seeds: Sequence[int]
) -> None:
    if not len(models) == len(loaders) == len(seeds) == len(configs) > 0:
        raise ValueError(
            f"{len(models)} models, {len(loaders)} loaders and {len(seeds)} seeds: give one of each per net"
        )
    if len({len(loader) for loader in loaders}) > 1:
        raise ValueError(
            f"loaders of {[len(loader) for loader in loaders]} batches: nets side by side need as many each"
        )
    if any(shared(config) != shared(configs[0]) for config in configs):
        raise ValueError("nets side by side may differ in seed, optimizer, schedule and loss: these differ in more")
    if any(config.distill.wants_teacher for config in configs):
        raise ValueError(
            "nets side by side have no teacher: set distill.weight=0 and distill.attention=0, or train each alone"
        )


def _steps(
    going: Mapping[int, Run], errors: dict[int, NonFiniteError], captured: CapturedSteps | None
) -> Iterator[None]:
    """Take the steps that the epoch still has, all nets in turns; a net that diverges is noted and left out.

    In a graph that is seen when the epoch ends.
    """
    first = next(iter(going.values()))
    together = captured.epoch(first.epoch, first.batch) if captured is not None else None
    alone = {} if captured is not None else {place: run.plain_steps() for place, run in going.items()}
    for _ in range(first.batch, len(first.batches)):
        left = {place: run for place, run in going.items() if place not in errors}
        for place, run in left.items():
            run.prepare_step()
            try:
                if together is None:
                    run.take(alone[place])
                    if run.device.type == "cpu":
                        run.check_finite()
            except NonFiniteError as error:
                errors[place] = error
        if together is not None:
            with first.in_words():
                next(together)
            for run in left.values():
                run.batch += 1
        yield
