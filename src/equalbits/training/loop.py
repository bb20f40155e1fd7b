"""The training loop: the main path on one screen, and others watch it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from equalbits.training.checkpoint import LAST
from equalbits.training.config import TrainConfig
from equalbits.training.distill import distilling
from equalbits.training.distributed import minding_peers
from equalbits.training.history import History, Reporter
from equalbits.training.randomness import own_randomness
from equalbits.training.resume import Saver
from equalbits.training.run import Run
from equalbits.training.step import AnyBatches, as_batches
from equalbits.training.stop_signals import stop_requests

#: Is told the model and the number of steps done, after every step.
Watcher = Callable[[nn.Module, int], None]


def train(
    model: nn.Module,
    batches: AnyBatches,
    config: TrainConfig,
    *,
    test: Iterable[tuple[Tensor, Tensor]] | None = None,
    watchers: Sequence[Watcher] = (),
    reporters: Sequence[Reporter] | Callable[[History], Sequence[Reporter]] = (),
    teacher: nn.Module | None = None,
    out: Path | str | None = None,
) -> History:
    """Train ``model`` in place and return the history of its epochs.

    With ``out``, a checkpoint is kept there, and a run that finds one goes on from it, to the same bits on a CPU as if
    it had never stopped; SIGTERM, SIGHUP and Ctrl-C then save and raise :class:`InterruptedTraining`. Several processes
    started by ``torchrun`` share each batch. ``watchers`` are called as ``f(model, step)`` before the first step and
    after every step. ``batches`` is a :class:`equalbits.data.Loader`, or any loader that can be iterated over again.
    """
    run_dir = Path(out) if out is not None else None
    with (
        own_numerics(config.precision),
        own_randomness(model),
        distilling(model, teacher, config) as loss,
        minding_peers(run_dir / LAST if run_dir else None),
        stop_requests(listen=out is not None) as stop,
    ):
        run = Run(model, as_batches(batches), config, loss, run_dir)
        saver = Saver(run)
        saver.resume()
        run.make_step()
        told = reporters(History(tuple(run.epochs))) if callable(reporters) else reporters
        for watcher in watchers:
            watcher(model, run.position.step)
        while run.epoch < config.epochs:
            run.begin_epoch()
            try:
                for step in run.steps():
                    for watcher in watchers:
                        watcher(model, step)
                    run.report(told)
                    saver.save_or_stop(stop.signal_number)
                record = run.finish_epoch(saver.until_told_to_stop(test, stop) if test is not None else None)
            except (RuntimeError, ValueError, OSError, EOFError):
                saver.stop_without_batch(stop.signal_number)
                raise
            run.tell(record, told)
            saver.end_epoch(record, stop.signal_number)
        return History(tuple(run.epochs))


@contextmanager
def own_numerics(precision: str) -> Iterator[None]:
    """TF32 products on a GPU unless full float32 is asked for; as they were afterwards."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
