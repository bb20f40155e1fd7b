"""The cases of a grid: every combination of some settings, each with a name that is fit for a directory."""

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equalbits.recipes.experiments.run_store import PlannedRun
from equalbits.recipes.recipe import Recipe

_MAX_NAME_BYTES = 255  # of a directory, on nearly every file system


@dataclass(frozen=True)
class Case:
    """One combination of settings, trained with several seeds; ``within`` is the directory above its own."""

    recipe: Recipe
    settings: Mapping[str, Any]
    within: str = ""

    @property
    def name(self) -> str:
        """The values of the settings, as a path below the store."""
        words = [str(value).replace("/", "-").replace(":", "-") or "none" for value in self.settings.values()]
        return f"{self.within}/" * bool(self.within) + ("_".join(words) or self.recipe.name)

    def runs(self, seeds: Sequence[int]) -> list[PlannedRun]:
        """Plan one run per seed; cases below different directories are never stacked together."""
        seeded = [self.recipe.with_settings({"seed": seed}) for seed in seeds]
        return [PlannedRun(self.name, recipe, stack_key=self.within) for recipe in seeded]


def cases_of(recipe: Recipe, vary: Mapping[str, Sequence[Any]], *, within: str = "") -> list[Case]:
    """Return a case for every combination of the settings to vary.

    >>> from equalbits.recipes import get_recipe
    >>> [case.name for case in cases_of(get_recipe("fashion-conv2"), {"model.weight_quantizer": ["sign", "bihalf"]})]
    ['sign', 'bihalf']
    """
    combinations = [dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())]
    cases = [Case(recipe.with_settings(settings), settings, within) for settings in combinations]
    names = [case.name.removeprefix(f"{within}/") for case in cases]
    for name in names:
        if not name.strip(". ") or re.search(r"[\\\x00-\x1f]", name) or len(os.fsencode(name)) > _MAX_NAME_BYTES:
            raise ValueError(f"{name[:40]!r} cannot name a folder: vary plain words of {_MAX_NAME_BYTES} bytes at most")
        if names.count(name) > 1:
            raise ValueError(f"two combinations would share the folder {name!r}: vary values that differ in words")
    return cases


def split_values(text: str) -> list[str]:
    """Split at commas, except inside brackets and between the settings of one method.

    >>> split_values("sign,irnet:t_min=0.1,t_max=5")
    ['sign', 'irnet:t_min=0.1,t_max=5']
    >>> split_values("[10, 20],[30]")
    ['[10, 20]', '[30]']
    """
    found: list[str] = []
    for word in (part.strip() for part in re.split(r",(?![^\[]*\])", text)):
        if found and ":" in found[-1] and re.match(r"\w+\s*=", word):
            found[-1] += f",{word}"  # the second setting of one method
        else:
            found.append(word)
    return found
