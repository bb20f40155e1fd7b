"""On a GPU every method's step can be captured as a CUDA graph, with stacked seeds."""

import pytest
import torch
from small_recipe import compare

from equalbits.recipes import get_recipe
from equalbits.recipes.experiments.compared_methods import list_methods

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
RECIPE = get_recipe("fashion-compare").with_settings({"epochs": 2, "data.limit": 2000, "precision": "tf32"})


@pytest.mark.parametrize("method", list_methods())
def test_recorded_steps_train_as_plain_ones_do(method, tmp_path) -> None:
    lines: list[str] = []
    found = {
        speed: compare(
            RECIPE.with_settings({"speed": speed}), tmp_path / speed, methods=[method], seeds=[0, 1], log=lines.append
        ).rows[0]
        for speed in ("auto", "plain")
    }
    assert not any("captured as a CUDA graph" in line for line in lines)
    assert found["auto"].speed == "recorded" and found["auto"].stacked_with == 2
    assert found["auto"].mean == pytest.approx(found["plain"].mean, abs=20)  # the order of sums differs, and bits flip
    if found["auto"].p_pos is not None:
        assert found["auto"].exact_filters == [found["auto"].filters] * 2
