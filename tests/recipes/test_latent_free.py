"""Nets without latents train through a recipe, and a balanced one never leaves its share."""

from equalbits.analysis import audit
from equalbits.recipes import get_recipe, run_recipe
from equalbits.recipes.experiments.compared_methods import recipe_for


def test_balanced_bop_trains_conv2_on_the_embedded_data_thirty_points_above_chance(tmp_path):
    small = {"epochs": 3, "data.limit": 3000, "data.batch_size": 100, "model.options.width": 0.15}
    recipe = recipe_for("balanced-bop", get_recipe("fashion-conv2").with_settings(small))
    shares = []
    result = run_recipe(recipe, tmp_path, device="cpu", watchers=[lambda model, step: shares.append(_inexact(model))])
    assert len(shares) == 3 * 30 + 1
    assert set(shares) == {0}
    assert result.history.last.test.accuracy > 10 + 30  # chance is a tenth of ten classes


def _inexact(model) -> int:
    """Count the filters whose share of +1 is not exact."""
    return sum(len(layer.inexact) for layer in audit(model, strict=False).layers)
