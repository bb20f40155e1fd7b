"""A recipe whose runs take a moment, and short calls of sweep and compare."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equalbits import recipes
from equalbits.recipes import CaseResult, Comparison, Execution, Recipe


def own(**settings) -> Recipe:
    """Two epochs of a narrow Conv2 on 24 made-up images."""
    recipe = Recipe.from_dict(
        {
            "name": "own",
            "epochs": 2,
            "model": {"name": "conv2", "options": {"width": 0.05}},
            "data": {"name": "synthetic:1x8x8:4:24", "batch_size": 8},
        }
    )
    return recipe.with_settings(settings)


def sweep(recipe: Recipe, out: Path, *, vary: Mapping[str, Any], seeds: Sequence[int], **how: Any) -> list[CaseResult]:
    """Sweep with the fields of an :class:`Execution` as arguments."""
    return recipes.sweep(recipe, out, vary=vary, seeds=seeds, execution=Execution(**how))


def compare(
    recipe: Recipe, out: Path, *, methods: Sequence[str], seeds: Sequence[int], tune: Sequence[float] = (), **how: Any
) -> Comparison:
    """Compare with the fields of an :class:`Execution` as arguments."""
    return recipes.compare(recipe, out, methods=methods, seeds=seeds, tune=tune, execution=Execution(**how))
