"""Seeds side by side: many small nets trained at once, so that together they fill a GPU that one leaves idle.

Every net has its own weights, optimizer, batches, counts and history; they share the moment. On a GPU all their steps
are one CUDA graph with a stream for each net. A net computes what it would compute alone, with the same kernels; runs
differ only as two runs alone differ, by the order in which a GPU adds up. Nets in one graph that draw random numbers
inside (dropout, stochastic bits) draw them from one sequence, so theirs are others than alone.
"""

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import cast

from torch import Tensor, nn

from equalbits.training.captured import CapturedSteps, DeviceBatches
from equalbits.training.config import TrainConfig
from equalbits.training.distill import label_loss
from equalbits.training.history import History, Reporter
from equalbits.training.loop import own_numerics, own_randomness
from equalbits.training.run import Run
from equalbits.training.step import Batches


def train_stack(
    models: Sequence[nn.Module],
    loaders: Sequence[Batches],
    config: TrainConfig,
    *,
    seeds: Sequence[int],
    test: Iterable[tuple[Tensor, Tensor]] | None = None,
    reporters: Sequence[Sequence[Reporter]] = (),
) -> list[History]:
    """Train ``models[i]`` on ``loaders[i]`` with ``seeds[i]`` for every i at once; return their histories.

    All share the settings. Nothing is saved before the end: a stack that is cut off starts anew.
    """
    if not len(models) == len(loaders) == len(seeds) > 0:
        raise ValueError(
            f"{len(models)} models, {len(loaders)} loaders and {len(seeds)} seeds: give one of each per net"
        )
    if len({len(loader) for loader in loaders}) > 1:
        raise ValueError(
            f"loaders of {[len(loader) for loader in loaders]} batches: nets side by side need as many each"
        )
    if config.distill.wants_teacher:
        raise ValueError("a stack trains without a teacher: train such nets one by one")
    told = reporters or [()] * len(models)
    with own_numerics(config.precision), own_randomness(models[0]):
        runs = [
            Run(model.train(), loader, dataclasses.replace(config, seed=seed), label_loss(config), None)
            for model, loader, seed in zip(models, loaders, seeds, strict=True)
        ]
        for run in runs:
            run.make_step()
        captured = None
        if runs[0].config.in_graph:
            captured = CapturedSteps([run.step for run in runs], [cast("DeviceBatches", run.batches) for run in runs])
        while runs[0].epoch < config.epochs:
            began = time.perf_counter()
            for run in runs:
                run.begin_epoch()
            _train_epoch(runs, captured)
            seconds = (time.perf_counter() - began) / len(runs)
            for run, listeners in zip(runs, told, strict=True):
                run.tell(run.finish_epoch(test, seconds), listeners)
        return [History(tuple(run.epochs)) for run in runs]


def _train_epoch(runs: Sequence[Run], captured: CapturedSteps | None) -> None:
    taking = [run.plain_steps() for run in runs] if captured is None else [captured.epoch(runs[0].epoch, 0)]
    for _ in range(len(runs[0].batches)):
        if captured is None:
            for run, steps in zip(runs, taking, strict=True):
                run.prepare_step()
                run.take(steps)
        else:
            for run in runs:
                run.prepare_step()
            next(taking[0])
            for run in runs:
                run.batch += 1
