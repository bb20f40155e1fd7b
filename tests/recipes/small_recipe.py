"""A recipe whose runs take a moment, for all tests of what is done with runs."""

from equalbits.recipes import Recipe, recipe_from_dict


def own(**settings) -> Recipe:
    """Two epochs of a narrow Conv2 on 24 made-up images."""
    recipe = recipe_from_dict(
        {
            "name": "own",
            "epochs": 2,
            "model": {"name": "conv2", "options": {"width": 0.05}},
            "data": {"name": "synthetic:1x8x8:4:24", "batch_size": 8},
        }
    )
    return recipe.with_settings(settings)
