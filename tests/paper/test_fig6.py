"""The toy net of figure 6, with exact counts."""

import itertools
import math

import numpy as np
import pytest

from equalbits.paper import get_item, reproduce
from equalbits.paper.items.fig6_toy_boundaries import count_boundaries, grid_points, output


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("fig6")
    return out, reproduce("fig6", out), get_item("fig6").measure(out, None)


def test_the_full_net_has_4096_combinations_and_76_boundaries_and_bihalf_924_and_66(finished):
    result = finished[2]
    assert (sum(result["combinations"]), result["unique_of_all"]) == (4096, 76)
    assert (result["combinations"][6], result["unique"][6]) == (924, 66)


def test_every_count_by_the_number_of_negatives_equals_the_golden_one(finished):
    result = finished[2]
    assert result["combinations"] == [math.comb(12, k) for k in range(13)]
    assert result["nonconstant"] == [0, 0, 6, 60, 189, 339, 432, 387, 216, 66, 9, 0, 0]
    assert result["unique"] == [0, 0, 2, 14, 35, 55, 66, 59, 37, 15, 3, 0, 0]


def test_counted_with_their_sides_bihalf_keeps_66_of_152(finished):
    result = finished[2]
    assert (result["labellings"][6], result["labellings_of_all"]) == (66, 152)


def test_the_facts_stated_beside_the_figure_are_true(finished):
    result = finished[2]
    assert (result["unique_of_5_6_7"], result["unique_of_6_7"]) == (76, 72)
    assert (result["fewest_nets_a_boundary"], result["most_nets_a_boundary"]) == (6, 36)
    assert result["least_distance_from_zero"] == pytest.approx(1.2e-5, rel=0.02)
    assert result["points"] == 62_500


def test_every_claim_of_the_figure_agrees(finished):
    assert [claim.agrees for claim in finished[1]] == [True] * 6 + [None]
    assert "66 of 152 (43.4%)" in finished[1][-1].ours


def test_the_counts_do_not_depend_on_the_grid():
    for points in (grid_points(0.1), grid_points(0.1, reach=8.0), grid_points(0.1) + 0.013):
        result = count_boundaries(points)
        assert (result["unique_of_all"], result["unique"][6]) == (76, 66)


def test_the_shared_sums_equal_the_plain_forward_pass():
    points = grid_points(0.5)
    random = np.random.default_rng(0)
    for net in random.choice([-1, 1], (20, 12)):
        hidden = 1 / (1 + np.exp(-(points @ net[:6].reshape(2, 3) + net[6:9])))
        np.testing.assert_allclose(output(tuple(net), points), hidden @ net[9:], atol=1e-12)


def test_nets_whose_output_weights_have_one_sign_are_constant():
    points = grid_points(0.5)
    for net in itertools.islice(itertools.product((-1, 1), repeat=9), 0, 512, 37):
        assert (output((*net, 1, 1, 1), points) > 0).all()
