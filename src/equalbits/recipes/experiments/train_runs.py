"""Train planned runs into a store: one by itself, or several at once as a stack. Each leaves its record."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from equalbits._files import remove_file, remove_partial_files, write_all_atomically, write_atomically
from equalbits._text import one_line
from equalbits.data import FolderLoader, Loader
from equalbits.recipes.bit_measurements import BitMeasurements
from equalbits.recipes.build import DataSpec, make_loader, make_model, make_with_common_start, pick_device
from equalbits.recipes.experiments.run_store import PlannedRun, RunStore
from equalbits.recipes.experiments.stack_checkpoint import checksum, remove_ended_stacks, stack_checkpoint
from equalbits.recipes.recipe import DataConfig, Recipe
from equalbits.recipes.run_dir import TrainedRun, stacked_files
from equalbits.recipes.run_record import DIVERGED, RunRecord
from equalbits.recipes.train_recipe import images_of, run_recipe, trained_teacher
from equalbits.training import (
    BEST,
    LAST,
    History,
    NonFiniteError,
    Reporter,
    StackError,
    Watcher,
    rank_from_env,
    train_stack,
)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Settings of where and how runs are trained; none changes a result.

    - ``root``: directory of the data sets
    - ``device``: "auto", "cpu", "cuda" or "cuda:1"
    - ``stack``: number of nets trained at once on one device; None leaves it to the command
    - ``ray``: address of a Ray cluster to spread the runs over; empty for none
    - ``log``: is called with each line of progress
    - ``reporters_for``: returns the reporters of a run, by its name; on a cluster there are none
    """

    root: Path | None = None
    device: str = "auto"
    stack: int | None = None
    ray: str = ""
    log: Callable[[str], None] = lambda line: None
    reporters_for: Callable[[str], Sequence[Reporter]] = lambda name: ()

    @property
    def on_gpu(self) -> bool:
        """True if runs are trained on a GPU of this machine."""
        return not self.ray and pick_device(self.device).startswith("cuda")


def check_one_process(command: str) -> None:
    """Raise where torchrun started several processes."""
    if rank_from_env().world_size > 1:
        raise ValueError(f"{command} runs in one process: start it without torchrun")


class Trainer:
    """Trains runs of one store on one device; with ``keep_weights`` nets of a stack leave their last weights.

    Runs of a compared method start from common weights and are measured while they train. They are always stacked and
    keep no weights. On a GPU with ``speed="auto"`` their steps are captured as a CUDA graph but not compiled, or run
    plain where that fails.
    """

    def __init__(self, store: RunStore, execution: Execution, *, keep_weights: bool = True) -> None:
        self.store, self.execution, self.keep_weights = store, execution, keep_weights
        self.root, self.device = execution.root, pick_device(execution.device)
        self._loaded: tuple[DataConfig, Loader, Loader] | None = None

    def train_stack(self, runs: Sequence[PlannedRun], reporters: Sequence[Reporter]) -> None:
        """Train runs at once on one device; ``reporters`` follow the first."""
        speeds = {run.recipe.train.speed for run in runs}
        if not (runs[0].method and self.device.startswith("cuda") and speeds == {"auto"}):
            self._train_together(runs, reporters)
            return
        recorded, plain = (
            [replace(run, recipe=run.recipe.with_settings({"speed": speed})) for run in runs]
            for speed in ("recorded", "plain")
        )
        try:
            self._train_together(recorded, reporters)
            return
        except RuntimeError as error:
            reason = one_line(error)
        self.execution.log(f"steps cannot be captured as a CUDA graph ({reason}): running them with speed=plain")
        torch.cuda.synchronize()
        self._train_together(plain, reporters)

    def train_alone(
        self,
        run: PlannedRun,
        reporters: Sequence[Reporter],
        *,
        watchers: Sequence[Watcher] = (),
        read: Callable[[TrainedRun], dict[str, Any]] | None = None,
    ) -> None:
        """Train one run by itself, or resume it; ``read`` returns its measurements.

        The counts of watchers are not part of a checkpoint: a run with watchers starts over.
        """
        out = self.store.dir(run)
        for name in (LAST, BEST) if watchers else ():
            remove_file(out / name)
        try:
            shared: dict[str, Any] = {"root": self.root, "device": self.device}
            shared["teacher_out"] = self._teacher_dir(run.recipe)
            finished = run_recipe(run.recipe, out, **shared, watchers=watchers, reporters=reporters)
        except NonFiniteError as error:
            record = RunRecord.of(run.recipe, self.device, History(()), 0.0, status=DIVERGED, error=str(error))
            out.mkdir(parents=True, exist_ok=True)
            write_atomically(out / "run.json", record.as_json())
            return
        if read:
            record = replace(RunRecord.read(out / "run.json"), measured=read(finished))
            write_atomically(out / "run.json", record.as_json())

    def _train_together(self, runs: Sequence[PlannedRun], reporters: Sequence[Reporter]) -> None:
        """Train runs, saved in one checkpoint, which the same call resumes, and write their records together.

        So the checkpoint can resume all of them or none.
        """
        if any(run.recipe.model.init_from for run in runs):
            raise ValueError("nets of a stack start anew: leave model.init_from out, or train each alone")
        train, test = self._load(runs[0].recipe.data)
        images = DataSpec.of(train)
        first, is_compared = runs[0].recipe, bool(runs[0].method)
        # The teacher of the first run is that of all.
        teacher = trained_teacher(first, self._teacher_dir(first), images, root=self.root, device=self.device)
        build = make_with_common_start if is_compared else make_model
        models = [build(run.recipe, images).to(self.device) for run in runs]
        if self.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(self.device)
        counts = [BitMeasurements(model, nets=len(runs)) for model in models] if is_compared else []
        followed: list[list[Reporter]] = [list(counts[place : place + 1]) for place in range(len(runs))]
        followed[0] += reporters
        began, errors = time.perf_counter(), dict[int, NonFiniteError]()
        histories: Sequence[History | None]
        try:
            with stack_checkpoint(self.store.out, runs, images) as checkpoint:
                histories = train_stack(
                    models,
                    [train.with_seed(run.seed) for run in runs],
                    [run.recipe.train for run in runs],
                    test=test,
                    reporters=followed,
                    teacher=teacher,
                    checkpoint=checkpoint,
                )
        except StackError as error:
            histories, errors = error.histories, error.errors
        share = (time.perf_counter() - began) / len(runs)
        files: dict[Path, bytes] = {}
        for place, (run, history) in enumerate(zip(runs, histories, strict=True)):
            more: dict[str, Any] = {"method": run.method, "stacked_with": len(runs)}
            seconds = 0.0
            if history is None:
                more |= {"status": DIVERGED, "error": str(errors[place])}
            elif counts:
                more |= {"measured": counts[place].measured(images)}
                seconds = max(each.seconds for each in counts)
            else:  # an interrupted stack took part of the time in earlier calls
                seconds = max(share, sum(epoch.seconds for epoch in history.epochs))
            ended = history or History(())
            record = RunRecord.of(run.recipe, self.device, ended, seconds, **more)
            kept = models[place] if history and self.keep_weights and not is_compared else None
            out = self.store.dir(run)
            out.mkdir(parents=True, exist_ok=True)
            remove_partial_files(out)
            stored = stacked_files(record, ended, images, kept, root=self.root)
            files |= {out / name: content for name, content in stored.items()}
        write_all_atomically(files)
        remove_ended_stacks(self.store.out)

    def _teacher_dir(self, recipe: Recipe) -> Path:
        """Return the directory of a recipe's teacher, which all runs on the same images share."""
        return self.store.out / "teachers" / f"{recipe.train.distill.teacher}-{checksum(images_of(recipe))}"

    def _load(self, data: DataConfig) -> tuple[Loader, Loader]:
        """Load a data set onto the device; the last one stays for the next stack."""
        if self._loaded is None or self._loaded[0] != data:
            self._loaded = None
            loaders = [make_loader(data, split, root=self.root, device=self.device) for split in ("train", "test")]
            train, test = (each.in_memory() if isinstance(each, FolderLoader) else each for each in loaders)
            self._loaded = data, train, test
        return self._loaded[1:]
