"""Verdicts are undecided where runs diverged or chance explains the difference."""

import random

import pytest

from equalbits._plotting import METHOD_NAMES
from equalbits.paper.claims import ONE_SEED, SOME_DIVERGED, above, beyond, near
from equalbits.paper.figures import fig4_repetitions, fig5_bit_ratio, fig8_pruning
from equalbits.paper.published import Published
from equalbits.paper.tables import tab3_imagenet


def case(*scores, total=10000):
    """Per cent right of each run; None where it diverged."""
    tests = [None if score is None else {"correct": round(score * total / 100), "total": total} for score in scores]
    return {"runs": [{"last": test and {"test": test}} for test in tests]}


def share_row(**cases):
    names = {"less": 0.4, "half": 0.5, "more": 0.6}
    result = {"seeds": [0, 1], "shares": [names[name] for name in cases], "data": {"X": {"literal": [*cases.values()]}}}
    return fig5_bit_ratio.claims(result)


def test_figure_5_is_undecided_where_one_run_at_one_half_finished():
    half = case(79, None, None, None, None)
    (row,) = share_row(less=case(70, 70, 70, 70, 70), half=half, more=case(60, None, None, None, None))
    assert (row.agrees, row.n) == (None, 1) and "4 of 5 diverged" in row.ours


def test_figure_5_is_undecided_where_runs_of_the_best_rival_diverged():
    (row,) = share_row(less=case(60, 61), half=case(70, 70.1), more=case(80, None))
    assert (row.agrees, row.n) == (None, 1)


def test_figure_5_disagrees_where_only_one_half_diverged():
    (row,) = share_row(less=case(70, 70), half=case(None, None), more=case(60, 61))
    assert row.agrees is False and row.ours == "0.4 with 70.00 ± 0.00 %; 0.5 has diverged"
    (alone,) = share_row(less=case(70), half=case(None))
    assert alone.agrees is None  # one seed


def test_figure_5_agrees_where_only_one_half_trained_and_is_undecided_where_nothing_did():
    (row,) = share_row(less=case(None, None), half=case(70, 70.5), more=case(None, None))
    assert row.agrees is True
    (row,) = share_row(less=case(None, None), half=case(None, None))
    assert (row.agrees, row.ours, row.n, row.difference) == (None, "all diverged", 0, None)


def repeated(sign, half):
    def run(loss):
        return {
            "last": loss
            and {split: {"correct": 70, "total": 100, "loss_sum": 100 * loss} for split in ("train", "test")}
        }

    methods = {"sign": {"runs": [run(loss) for loss in sign]}, "bihalf": {"runs": [run(loss) for loss in half]}}
    return {"seeds": [*range(len(sign))], "methods": methods, "quick": False, "title": "Conv2"}


@pytest.mark.parametrize("half", [[0.4, 0.41] + [None] * 8, [None] * 10])
def test_figure_4_names_diverged_runs_and_is_undecided(half, tmp_path):
    result = repeated([0.5 + 0.01 * seed for seed in range(10)], half)
    rows = fig4_repetitions.claims(result)
    assert len(rows) == 5 and {row.agrees for row in rows} == {None}
    lost = half.count(None)
    assert all(row.ours.endswith(f"; {lost} of 10 by Bi-half diverged") and row.n == 10 - lost for row in rows)
    fig4_repetitions.draw(result, tmp_path)


def test_figure_4_can_be_drawn_where_every_run_diverged(tmp_path):
    result = repeated([None, None], [None, None])
    assert {row.agrees for row in fig4_repetitions.claims(result)} == {None}
    fig4_repetitions.draw(result, tmp_path)
    assert (tmp_path / "fig4.png").exists()


@pytest.mark.parametrize(("seeds", "agrees"), [(1, None), (2, None), (18, None), (19, True), (100, True)])
def test_figure_4_decides_by_sorted_losses_only_with_enough_seeds(seeds, agrees):
    sign, half = ([start + 0.001 * seed for seed in range(seeds)] for start in (0.5, 0.4))
    assert fig4_repetitions.claims(repeated(sign, half))[-1].agrees is agrees
    assert fig4_repetitions.claims(repeated(sign, [0.9, *half[1:]]))[-1].agrees is (agrees and False)


def test_sorted_losses_of_equal_methods_all_lie_below_as_often_as_figure_4_says():
    draw, times = random.Random(0), 2000

    def losses():
        return [draw.gauss(1, 0.05) for _ in range(4)]

    rows = [fig4_repetitions.claims(repeated(losses(), losses()))[-1] for _ in range(times)]
    assert {row.within for row in rows} == {"every rank; by chance once in 5"}
    assert 0.17 < sum(row.ours == "4 of 4" for row in rows) / times < 0.23


@pytest.mark.parametrize("seeds", [2, 3, 6])
def test_figure_4_rarely_finds_a_difference_between_equal_methods(seeds):
    draw, times = random.Random(0), 600

    def losses():
        return [draw.gauss(1, 0.05) for _ in range(seeds)]

    rows = [fig4_repetitions.claims(repeated(losses(), losses()))[0] for _ in range(times)]
    assert sum(row.agrees is not None for row in rows) / times < 0.07


def pruned(cases, **others):
    rules = {rule: [case(80, 80.2) for _ in cases] for rule in fig8_pruning.RULES}
    rules["pruned-bihalf-score"] = [*cases.values()]
    rules |= {name.replace("_", "-"): [each for _ in cases] for name, each in others.items()}
    return fig8_pruning.claims({"sparsities": [*cases], "nets": {"Conv2": rules}})


def test_figure_8_compares_both_rules_of_bihalf_with_every_trained_baseline():
    names = [row.claim for row in pruned({0.0: case(80, 81), 0.5: case(82, 83)})]
    for words in ("bi-half", "bi-half on learned masks"):
        assert f"Conv2, 0% pruned: {words} above {METHOD_NAMES['pruned-sign']}, at the better of two rates" in names
        assert f"Conv2, 50% pruned: {words} above {METHOD_NAMES['mpt']}" in names
        assert f"Conv2: best pruned {words} (50%) above the full binary net" in names
    assert len(names) == 2 * (2 + 1 + 1)


@pytest.mark.parametrize(
    ("sign", "slow", "agrees", "against", "within"),
    [
        (case(10, 10.2), case(10, 10.1), None, "10.10", "the baseline did not learn"),
        (case(13.1, 19.9), case(10, 10.1), None, "16.50", "the baseline did not learn"),
        (case(10, 10.2), case(40, 40.2), True, "40.10", "widened for the best of 2"),
        (case(90, 90.2), case(40, 40.2), False, "90.10", "widened for the best of 2"),
        (case(10, 40), case(9, 10), None, "25.00", "some nets of the baseline did not learn"),
        (case(None, None), case(40, 40.2), True, "40.10", "widened for the best of 2"),
        (case(None, 79), case(40, 40.2), None, "79.00", SOME_DIVERGED),  # what is left does better
        (case(None, 30), case(40, 40.2), True, "40.10", "widened for the best of 2"),
        (case(None, 79), case(None, 40), None, "79.00", SOME_DIVERGED),
    ],
)
def test_figure_8_uses_the_better_of_two_rates_and_ignores_baselines_that_did_not_learn(
    sign, slow, agrees, against, within
):
    rows = pruned({0.0: case(80, 81), 0.5: case(82, 83)}, pruned_sign=sign, pruned_sign_slow=slow)
    row = next(row for row in rows if "50% pruned: bi-half on learned masks above Sign" in row.claim)
    assert row.agrees is agrees and f"against {against}" in row.ours and within in row.within


def test_figure_8_accounts_for_the_number_of_classes():
    rules = {"pruned-bihalf": [case(60, 60.4)], "mpt": [case(10.2, 10.9)]}
    (row,) = fig8_pruning.claims({"sparsities": [0.5], "nets": {"ResNet-18": rules}})
    assert row.agrees is True
    rules["mpt"] = [case(1.0, 1.1)]
    (row,) = fig8_pruning.claims({"sparsities": [0.5], "nets": {"ResNet-18": rules}})
    assert row.agrees is None


def test_figure_8_makes_the_claims_that_its_measured_rules_allow():
    rules = {"pruned-bihalf": [case(80, 81), case(85, 86)], "pruned-sign": [case(79, 79.1), case(78, 78.1)]}
    names = [row.claim for row in fig8_pruning.claims({"sparsities": [0.0, 0.5], "nets": {"Conv2": rules}})]
    assert len(names) == 3 and not any("learned masks" in name or "MPT" in name for name in names)


def test_figure_8_disagrees_where_all_pruned_nets_diverged_and_is_undecided_where_some_did():
    row = pruned({0.0: case(80, 81), 0.5: case(None, None)})[-1]
    assert row.agrees is False and row.ours.startswith("diverged against")
    assert pruned({0.0: case(80, 81), 0.5: case(90, None)})[-1].agrees is None


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_selecting_the_best_of_equal_cases_rarely_looks_significant(seeds):
    draw, times, taken, refused = random.Random(0), 1000, 0, 0

    def alike(places):
        return {place: case(*(draw.gauss(79.3, 1.0) for _ in range(seeds))) for place in places}

    for _ in range(times):
        (row,) = fig8_pruning._better_than_full("x", alike(fig8_pruning.SPARSITIES))
        taken += row.agrees is True
        refused += fig5_bit_ratio._best("x", alike(fig5_bit_ratio.SHARES)).agrees is False
    assert "widened for the best of 10" in row.within
    assert max(taken, refused) / times < 0.03  # 2.5 % in one direction
    far = {**alike(fig8_pruning.SPARSITIES), 0.0: case(30, 30.1), 0.5: case(89, 89.1)}
    assert fig8_pruning._better_than_full("x", far)[0].agrees is True


def imagenet(*top1):
    """A row of table 3's claims on bi-half's top-1, for so many per cent; None where a run diverged."""
    tests = [score and {"correct": round(500 * score), "correct_top5": 45_000, "total": 50_000} for score in top1]
    found = {"runs": [{"last": test and {"test": test}} for test in tests]}
    rows = tab3_imagenet.claims({"quick": False, "nets": {"ResNet-18": {"sign": found, "bihalf": found}}})
    return next(row for row in rows if row.claim == "ResNet-18, Bi-half, top-1")


def test_table_3_accepts_one_run_but_not_what_is_left_after_divergence():
    assert (imagenet(60.4).agrees, imagenet(60.4).ours, imagenet(59.8).agrees) == (True, "60.40 %", False)
    assert imagenet(60.3, 60.5).ours == "60.40 ± 0.14 %"
    some = imagenet(61.0, None)
    assert (some.agrees, some.ours, some.n) == (None, "61.00 % (1 of 2 diverged)", 1)
    assert (imagenet(None).agrees, imagenet(None).ours) == (False, "diverged")


@pytest.mark.parametrize(("score", "agrees"), [(79.95, True), (79.96, False), (79.35, True), (79.34, False)])
def test_near_a_published_mean_is_within_three_tenths_of_a_point(score, agrees):
    row = near("Conv2", case(score, score, score), Published(79.65, 0.2))
    assert row.agrees is agrees and row.cells()[4] == ("yes" if agrees else "no") and row.within == "0.3 points"


@pytest.mark.parametrize("total", [9_000, 11_000])
def test_another_number_of_test_images_leaves_published_numbers_undecided(total):
    scores = (79.6, 79.7, 79.65)
    few = "9,000" if total < 10_000 else "11,000"
    for row in (
        near("", case(*scores, total=total), Published(79.65, 0.2)),
        beyond("", case(*scores, total=total), Published(70, 0.2), by=1),
    ):
        assert (row.agrees, row.within) == (None, f"scored on {few} test images, the paper's on 10,000")
    test = {"correct": 400, "correct_top5": 490, "total": 500}  # ten of ImageNet's classes, in its folders
    ten = {"runs": [{"last": {"test": test}}]}
    rows = tab3_imagenet.claims({"quick": False, "nets": {"ResNet-18": {"sign": ten, "bihalf": ten}}})
    assert {row.agrees for row in rows} == {None} and rows[0].ours == "80.00 %"
    assert {row.within for row in rows[:4]} == {"scored on 500 test images, the paper's on 50,000"}


def test_exactly_one_point_above_is_enough():
    assert beyond("Conv2", case(80.65, 80.65), Published(79.65, 0.2), by=1).agrees is True
    assert beyond("Conv2", case(80.64, 80.64), Published(79.65, 0.2), by=1).agrees is False


def test_agreeing_seeds_do_not_make_up_for_a_small_test_set():
    small = above("", case(61, 61, total=100), case(60, 60, total=100))
    assert small.agrees is None and small.within == "95 % interval over seeds: 1.95 points"
    assert above("", case(61, 61), case(60, 60)).agrees is True
    assert above("", case(60, 60), case(61, 61)).agrees is False


def test_a_difference_is_tested_against_the_deviation_over_seeds():
    row = above("", case(70, 71, 72), case(60, 61, 62, 61))  # 2.57 √(1/3 + (2/3)/4), five degrees of freedom
    assert row.within == "95 % interval over seeds: 1.82 points" and row.n == 3 and row.agrees is True
    assert row.ours == "+10.00 points (71.00 ± 1.00 % against 61.00 ± 0.82 %)"
    assert above("", case(61, 61.7), case(60, 60.7)).agrees is None  # 4.30 √(0.245/2 + 0.245/2) is more than a point


@pytest.mark.parametrize(
    ("scores", "agrees", "within", "n"),
    [
        ((79.6, 79.7), True, "0.3 points", 2),
        ((79.6,), None, ONE_SEED, 1),
        ((79.6, 79.7, None), None, SOME_DIVERGED, 2),
        ((79.6, None), None, SOME_DIVERGED, 1),
        ((None, None), False, "0.3 points", 0),  # it does not train: that is an answer
    ],
)
def test_one_seed_or_diverged_runs_leave_a_published_mean_undecided(scores, agrees, within, n):
    row = near("", case(*scores), Published(79.65, 0.2))
    assert (row.agrees, row.within, row.n) == (agrees, within, n)
    assert row.cells()[3] == ("–" if n == 0 else "−0.05" if n == 1 else "+0.00")


@pytest.mark.parametrize(
    ("better", "worse", "agrees", "within"),
    [
        ((70, 71), (None, None), True, "whether it trains at all"),
        ((None, None), (70, 71), False, "whether it trains at all"),
        ((70, None), (None, None), None, "whether it trains at all"),
        ((None, None), (None, None), None, "whether it trains at all"),
        ((70,), (60,), None, ONE_SEED),
        ((70, 71, None), (60, 61, 62), None, SOME_DIVERGED),
    ],
)
def test_training_beats_divergence_and_partial_divergence_is_undecided(better, worse, agrees, within):
    row = above("", case(*better), case(*worse))
    assert (row.agrees, row.within) == (agrees, within)
