"""A learning rate for each method, chosen on training images held out from it, so that none is judged at another's.

How far a step moves the bits depends on the method: one that divides by the latents' spread takes far larger steps at
the same rate. Bop's bits do not feel the rate: their gamma is tuned in its place. The test images have no say in the
choice.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from equalbits.data import Dataset, Loader
from equalbits.recipes.experiments.contest import Ground, is_done, run_file, run_method
from equalbits.recipes.experiments.methods import recipe_for
from equalbits.recipes.experiments.stack_checkpoint import tidy
from equalbits.recipes.recipe import Recipe

_EVERY = 5  # one image in five is held out
_FIRST_SEED = 1_000_003  # where nobody counts to


def tuning_seed(seeds: Sequence[int]) -> int:
    """A seed for tuning that is none of the comparison's, and stays the same when seeds are added later.

    >>> tuning_seed([0, 1, 2]) == tuning_seed(range(100))
    True
    """
    return next(seed for seed in itertools.count(_FIRST_SEED) if seed not in seeds)


def setting_at(recipe: Recipe, method: str, rate: float) -> tuple[str, float]:
    """What a method has in place of a learning rate, and its value there: gamma where bits are flipped.

    The gamma is as many times the recipe's as the rate is the recipe's rate; all else keeps the recipe's.

    >>> from equalbits.recipes import get_recipe
    >>> recipe = get_recipe("fashion-compare")
    >>> setting_at(recipe, "bihalf", 0.2), setting_at(recipe, "bop", 0.2)
    (('lr', 0.2), ('gamma', 0.0002))
    """
    optimizer = recipe_for(method, recipe).train.optimizer
    return ("gamma", optimizer.gamma * (rate / optimizer.lr)) if optimizer.flips else ("lr", rate)


@dataclass(frozen=True)
class Trials:
    """Runs at several learning rates, each kept under ``tuning/`` in the comparison's folder and not run again."""

    recipe: Recipe
    out: Path
    rates: tuple[float, ...]
    seed: int

    def best(self, method: str, ground: Callable[[], Ground], log: Callable[[str], None]) -> Recipe:
        """The recipe at the rate with which the method scores best on held-out images; of equals the smaller."""
        scores: list[tuple[int, Recipe]] = []
        for rate in sorted(set(self.rates)):
            name, value = setting_at(self.recipe, method, rate)
            recipe = self.recipe.with_settings({f"optimizer.{name}": value})
            out = self.out / "tuning" / f"{name}{value:g}"
            tidy(out)
            if not is_done(recipe, out, method, self.seed):
                told = run_method(_held_out(replace(ground(), recipe=recipe, out=out)), method, [self.seed])
                log(f"{method} at {name} {value:g}, on held-out images: {told}")
            run = json.loads(run_file(out, method, self.seed).read_text())
            scores.append((-1 if "failed" in run else run["last"]["test"]["correct"], recipe))
        return max(scores, key=lambda found: found[0])[1]


def _held_out(ground: Ground) -> Ground:
    """The ground with four fifths of the training images to train on, and the others in place of the test images."""
    known = ground.train.dataset
    if len(known) < _EVERY:
        raise ValueError(f"--tune holds out one training image in {_EVERY}, and there are {len(known)}: train on more")
    out = torch.arange(len(known), device=known.device) % _EVERY == _EVERY - 1
    data, seed = ground.recipe.data, ground.recipe.train.seed
    train = Loader(
        _chosen(known, ~out),
        batch_size=data.batch_size,
        shuffle=True,
        augment=data.augment,
        erase=data.erase,
        seed=seed,
    )
    return replace(ground, train=train, test=Loader(_chosen(known, out), batch_size=data.test_batch_size))


def _chosen(dataset: Dataset, which: torch.Tensor) -> Dataset:
    return replace(dataset, images=dataset.images[which], labels=dataset.labels[which])
