"""Verdicts are undecided where runs diverged or chance explains the difference."""

import random

import pytest
from scipy.stats import ttest_ind, ttest_ind_from_stats

from equalbits._claim import Claim
from equalbits._plotting import METHOD_NAMES, save_figure
from equalbits.paper.claims import ONE_SEED, SOME_DIVERGED, SOME_GUESS, above, above_published, correct, near
from equalbits.paper.items import fig4_repetitions, fig5_bit_ratio, fig8_pruning, flip_rate, tab3_imagenet
from equalbits.paper.published_numbers import Published


def case(*scores, total=10000):
    """Per cent right of each run; None where it diverged."""
    tests = [None if score is None else {"correct": round(score * total / 100), "total": total} for score in scores]
    return {"runs": [{"last": test and {"test": test}} for test in tests]}


def five(score):
    """Five runs around a score."""
    return case(*(None if score is None else score + step / 10 for step in (-2, -1, 0, 1, 2)))


def decided(row):
    """The row of an item that makes this claim alone."""
    return correct([row])[0]


def share_row(**cases):
    names = {"less": 0.4, "half": 0.5, "more": 0.6}
    result = {"seeds": [0, 1], "shares": [names[name] for name in cases], "data": {"X": {"literal": [*cases.values()]}}}
    return correct(fig5_bit_ratio.claims(result))


def test_figure_5_is_undecided_where_one_run_at_one_half_finished():
    half = case(79, None, None, None, None)
    (row,) = share_row(less=case(70, 70, 70, 70, 70), half=half, more=case(60, None, None, None, None))
    assert (row.agrees, row.n) == (None, 1) and "4 of 5 diverged" in row.ours


def test_figure_5_is_undecided_where_runs_of_the_best_rival_diverged():
    (row,) = share_row(less=case(60, 61), half=case(70, 70.1), more=case(80, None))
    assert (row.agrees, row.n, row.n_other) == (None, 2, 1)


def test_figure_5_disagrees_where_only_one_half_diverged():
    (row,) = share_row(less=five(70), half=five(None), more=five(60))
    assert row.agrees is False and row.ours == "0.4 with 70.00 ± 0.16 %; 0.5 has diverged"
    assert row.decided_by.startswith("Fisher's exact test of which runs diverged: p = 0.016,")
    (few,) = share_row(less=case(70, 70), half=case(None, None))
    assert few.agrees is None  # of four runs two diverged: chance
    (alone,) = share_row(less=case(70), half=case(None))
    assert (alone.agrees, alone.decided_by) == (None, ONE_SEED)


def test_figure_5_agrees_where_only_one_half_trained_and_is_undecided_where_nothing_did():
    (row,) = share_row(less=five(None), half=five(70), more=five(None))
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
def test_figure_4_names_diverged_runs_and_is_undecided(half):
    result = repeated([0.5 + 0.01 * seed for seed in range(10)], half)
    rows = fig4_repetitions.claims(result)
    assert len(rows) == 5 and {row.agrees for row in rows} == {None}
    lost = half.count(None)
    assert all(row.ours.endswith(f"; {lost} of 10 by Bi-half diverged") and row.n == 10 - lost for row in rows)
    assert fig4_repetitions.draw(result).axes


def test_figure_4_can_be_drawn_where_every_run_diverged(tmp_path):
    result = repeated([None, None], [None, None])
    assert {row.agrees for row in fig4_repetitions.claims(result)} == {None}
    save_figure(fig4_repetitions.draw(result), tmp_path, "fig4")
    assert (tmp_path / "fig4.png").exists()


@pytest.mark.parametrize(("seeds", "agrees"), [(1, None), (2, None), (38, None), (39, True), (100, True)])
def test_figure_4_decides_by_sorted_losses_only_with_enough_seeds(seeds, agrees):
    sign, half = ([start + 0.001 * seed for seed in range(seeds)] for start in (0.5, 0.4))
    assert decided(fig4_repetitions.claims(repeated(sign, half))[-1]).agrees is agrees
    row = fig4_repetitions.claims(repeated(sign, [0.9, *half[1:]]))[-1]
    assert (row.agrees, row.decided_by, row.p) == ((False, "count", None) if seeds > 1 else (None, ONE_SEED, None))


def test_sorted_losses_of_equal_methods_all_lie_below_as_often_as_figure_4_says():
    draw, times = random.Random(0), 2000

    def losses():
        return [draw.gauss(1, 0.05) for _ in range(4)]

    rows = [fig4_repetitions.claims(repeated(losses(), losses()))[-1] for _ in range(times)]
    assert {(row.decided_by, row.p) for row in rows} == {("count", None), ("every rank, by chance 2 in 5", 0.4)}
    assert 0.37 < sum(row.ours in ("0 of 4", "4 of 4") for row in rows) / times < 0.43


@pytest.mark.parametrize("seeds", [2, 3, 6])
def test_figure_4_rarely_finds_a_difference_between_equal_methods(seeds):
    draw, times = random.Random(0), 600

    def losses():
        return [draw.gauss(1, 0.05) for _ in range(seeds)]

    rows = [decided(fig4_repetitions.claims(repeated(losses(), losses()))[0]) for _ in range(times)]
    assert sum(row.agrees is not None for row in rows) / times < 0.07


def flip_rate_rows(sign, half=30):
    """Claims by flips per million of Sign at each learning rate, of bi-half at 0.1; None where all runs diverged."""

    def at(method, rate, flips):
        counts = {"flips": flips, "symbols": 1000, "steps": 1000}
        runs = [{**run, **counts} for run in five(None if flips is None else 70)["runs"]]
        return {"settings": {"model.weight_quantizer": method, "optimizer.lr": rate}, "runs": runs}

    cases = [at("sign", rate, flips) for rate, flips in sign.items()]
    return [row.claim.partition(":")[0] for row in flip_rate.claims({"cases": [*cases, at("bihalf", 0.1, half)]})]


def test_flip_rate_is_compared_at_the_nearest_trained_case_unless_that_is_the_usual_one():
    same, nearest = "bi-half above Sign at the same learning rate", "bi-half above Sign at its nearest flip rate"
    assert flip_rate_rows({0.1: 90, 0.2: 50}) == [same, f"{nearest} (learning rate 0.2"]
    assert flip_rate_rows({0.1: 90, 0.2: 80, 0.4: None}) == [same, f"{nearest} (learning rate 0.2"]
    assert flip_rate_rows({0.1: 40, 0.2: 80}) == [same]
    assert flip_rate_rows({0.1: None}) == flip_rate_rows({0.1: 90, 0.2: 50}, half=None) == [same]
    assert flip_rate_rows({0.4: None}) == []


def pruned(cases, **others):
    rules = {rule: [five(80) for _ in cases] for rule in fig8_pruning.RULES}
    rules["pruned-bihalf-score"] = [*cases.values()]
    rules |= {name.replace("_", "-"): [each for _ in cases] for name, each in others.items()}
    return correct(fig8_pruning.claims({"sparsities": [*cases], "nets": {"Conv2": rules}}))


def test_figure_8_compares_both_rules_of_bihalf_with_every_trained_baseline():
    names = [row.claim for row in pruned({0.0: case(80, 81), 0.5: case(82, 83)})]
    for words in ("bi-half", "bi-half on learned masks"):
        assert f"Conv2, 0% pruned: {words} above {METHOD_NAMES['pruned-sign']}, at the better of two rates" in names
        assert f"Conv2, 50% pruned: {words} above {METHOD_NAMES['mpt']}" in names
        assert f"Conv2: best pruned {words} (50%) above the full binary net" in names
    assert len(names) == 2 * (2 + 1 + 1)


@pytest.mark.parametrize(
    ("sign", "slow", "agrees", "against", "decided_by"),
    [
        (five(10), five(9), None, "10.00", "the baseline did not learn"),
        (case(13.1, 19.9), five(10), None, "16.50", "the baseline did not learn"),
        (five(10), five(40), True, "40.00", "p times 2 for the best of 2"),
        (five(90), five(40), False, "90.00", "p times 2 for the best of 2"),
        (case(10, 40), case(9, 10), None, "25.00", SOME_GUESS),
        (case(None, None), five(40), True, "40.00", "p times 2 for the best of 2"),
        (case(None, 79), five(40), None, "79.00", SOME_DIVERGED),  # what is left does better
        (case(None, 30), five(40), True, "40.00", "p times 2 for the best of 2"),
        (case(None, 79), case(None, 40), None, "79.00", SOME_DIVERGED),
    ],
)
def test_figure_8_uses_the_better_of_two_rates_and_ignores_baselines_that_did_not_learn(
    sign, slow, agrees, against, decided_by
):
    rows = pruned({0.0: five(80), 0.5: five(82)}, pruned_sign=sign, pruned_sign_slow=slow)
    row = next(row for row in rows if "50% pruned: bi-half on learned masks above Sign" in row.claim)
    assert row.agrees is agrees and f"against {against}" in row.ours and decided_by in row.decided_by


def test_figure_8_accounts_for_the_number_of_classes():
    rules = {"pruned-bihalf": [five(60)], "mpt": [five(10)]}
    (row,) = correct(fig8_pruning.claims({"sparsities": [0.5], "nets": {"ResNet-18": rules}}))
    assert row.agrees is True
    rules["mpt"] = [five(1)]
    (row,) = correct(fig8_pruning.claims({"sparsities": [0.5], "nets": {"ResNet-18": rules}}))
    assert row.agrees is None


def test_figure_8_makes_the_claims_that_its_measured_rules_allow():
    rules = {"pruned-bihalf": [case(80, 81), case(85, 86)], "pruned-sign": [case(79, 79.1), case(78, 78.1)]}
    names = [row.claim for row in fig8_pruning.claims({"sparsities": [0.0, 0.5], "nets": {"Conv2": rules}})]
    assert len(names) == 3 and not any("learned masks" in name or "MPT" in name for name in names)


def test_figure_8_disagrees_where_all_pruned_nets_diverged_and_is_undecided_where_some_did():
    row = decided(fig8_pruning._better_than_full("", {0.0: five(80), 0.5: five(None)})[0])
    assert row.agrees is False and row.ours.startswith("diverged against")
    assert pruned({0.0: case(80, 81), 0.5: case(90, None)})[-1].agrees is None


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_selecting_the_best_of_equal_cases_rarely_looks_significant(seeds):
    draw, times, taken, refused = random.Random(0), 1000, 0, 0

    def alike(places):
        return {place: case(*(draw.gauss(79.3, 1.0) for _ in range(seeds))) for place in places}

    for _ in range(times):
        row = decided(fig8_pruning._better_than_full("x", alike(fig8_pruning.SPARSITIES))[0])
        taken += row.agrees is True
        refused += decided(fig5_bit_ratio._best("x", alike(fig5_bit_ratio.SHARES))).agrees is False
    assert "for the best of 10" in row.decided_by
    assert max(taken, refused) / times < 0.03  # 2.5 % in one direction
    far = {**alike(fig8_pruning.SPARSITIES), 0.0: five(30), 0.5: five(89)}
    assert decided(fig8_pruning._better_than_full("x", far)[0]).agrees is True


def imagenet(*top1):
    """A row of table 3's claims on bi-half's top-1, for so many per cent; None where a run diverged."""
    tests = [score and {"correct": round(500 * score), "correct_top5": 45_000, "total": 50_000} for score in top1]
    found = {"runs": [{"last": test and {"test": test}} for test in tests]}
    rows = tab3_imagenet.claims({"quick": False, "nets": {"ResNet-18": {"sign": found, "bihalf": found}}})
    return next(row for row in rows if row.claim.startswith("ResNet-18, Bi-half, top-1"))


def test_table_3_is_undecided_at_one_seed_and_its_tolerance_has_two_sides():
    assert (imagenet(60.4).agrees, imagenet(60.4).ours, imagenet(60.4).decided_by) == (None, "60.40 %", ONE_SEED)
    assert [imagenet(score, score).agrees for score in (60.4, 59.9, 59.8, 60.9, 61.0)] == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert imagenet(60.3, 60.5).ours == "60.40 ± 0.14 %"
    some = imagenet(61.0, None)
    assert (some.agrees, some.ours, some.n) == (None, "61.00 % (1 of 2 diverged)", 1)
    assert (imagenet(None).agrees, imagenet(None).ours) == (None, "diverged")


@pytest.mark.parametrize(("score", "agrees"), [(79.95, True), (79.96, False), (79.35, True), (79.34, False)])
def test_near_a_published_mean_is_within_three_tenths_of_a_point(score, agrees):
    row = near("Conv2", case(score, score, score), Published(79.65, 0.2))
    assert row.agrees is agrees and row.cells()[4] == ("yes" if agrees else "no")
    assert row.claim == "Conv2: within 0.3 points of the paper's" and row.decided_by == "the two means"


def test_an_equivalence_test_stands_beside_a_tolerance_and_does_not_decide_it():
    row = decided(near("", case(79.6, 79.7, 79.65), Published(79.65, 0.2)))
    assert row.agrees is True and row.decided_by.startswith("the two means; TOST: p = 0.019, by Holm 0.019, equivalent")
    row = decided(near("", case(79.2, 79.9, 79.5), Published(79.65, 0.2)))
    assert row.agrees is True and row.decided_by.endswith(", equivalence not shown")


@pytest.mark.parametrize("total", [9_000, 11_000])
def test_another_number_of_test_images_leaves_published_numbers_undecided(total):
    scores = (79.6, 79.7, 79.65)
    few = "9,000" if total < 10_000 else "11,000"
    for row in (
        near("", case(*scores, total=total), Published(79.65, 0.2)),
        above_published("", case(*scores, total=total), Published(70, 0.2)),
    ):
        assert (row.agrees, row.decided_by) == (None, f"scored on {few} test images, the paper's on 10,000")
    test = {"correct": 400, "correct_top5": 490, "total": 500}  # ten of ImageNet's classes, in its folders
    ten = {"runs": [{"last": {"test": test}}]}
    rows = tab3_imagenet.claims({"quick": False, "nets": {"ResNet-18": {"sign": ten, "bihalf": ten}}})
    assert {row.agrees for row in rows} == {None} and rows[0].ours == "80.00 %"
    assert {row.decided_by for row in rows[:4]} == {"scored on 500 test images, the paper's on 50,000"}


def test_a_published_mean_counts_as_five_seeds_with_its_population_deviation():
    row = decided(above_published("Conv2", five(80), Published(79.65, 0.2)))
    expected = ttest_ind_from_stats(80, 0.1 * 2.5**0.5, 5, 79.65, 0.2 * 1.25**0.5, 5, equal_var=False).pvalue
    assert row.claim == "Conv2: above the paper's" and row.agrees is True and row.p == pytest.approx(expected)
    assert decided(above_published("", five(79), Published(79.65, 0.2))).agrees is False
    assert decided(above_published("", five(79.7), Published(79.65, 0.2))).agrees is None


def test_agreeing_seeds_do_not_make_up_for_a_small_test_set():
    small = decided(above("", case(61, 61, total=100), case(60, 60, total=100)))
    assert small.agrees is None and small.p == 1  # one image
    seven = [case(score, score, total=100) for score in (67, 60)]
    assert above("", *seven).p == 2 / 2**7
    assert above("", *seven, best_of=4).p == 4 * 2 / 2**7
    assert above("", *seven, best_of=100).p == 1
    assert decided(above("", case(61, 61), case(60, 60))).agrees is True
    assert decided(above("", case(60, 60), case(61, 61))).agrees is False


def test_a_difference_is_tested_by_welch_over_the_seeds():
    row = decided(above("", case(70, 71, 72), case(60, 61, 62, 61)))
    expected = ttest_ind([70, 71, 72], [60, 61, 62, 61], equal_var=False)
    low, high = expected.confidence_interval()
    words = f"Welch's t, 95 % interval +{low:.2f} to +{high:.2f}: p = {expected.pvalue:.2g}, by Holm"
    assert row.p == pytest.approx(expected.pvalue) and row.decided_by.startswith(words)
    assert row.n == 3 and row.agrees is True
    assert row.ours == "+10.00 points (71.00 ± 1.00 % against 61.00 ± 0.82 %)"
    assert decided(above("", case(61, 61.7), case(60, 60.7))).agrees is None


def test_holm_corrects_all_tests_of_one_item_together():
    def row(p, **more):
        return Claim(claim="", paper="", ours="", agrees=True, decided_by="a test", n=5, p=p, **more)

    rows = [row(0.01), row(None), row(0.04), row(0.03)]
    assert [each.agrees for each in correct(rows)] == [True, True, None, None]
    assert [each.decided_by for each in correct(rows)][:2] == ["a test: p = 0.01, by Holm 0.03", "a test"]
    assert correct([row(0.04)])[0].agrees is True
    beside = [row(None, p_equivalent=p) for p in (0.01, 0.04)]
    assert [each.agrees for each in correct([*beside, row(0.04)])] == [True, True, True]  # two kinds of question
    assert correct([]) == []


@pytest.mark.parametrize(
    ("scores", "agrees", "decided_by", "n"),
    [
        ((79.6, 79.7), True, "the two means", 2),
        ((79.6,), None, ONE_SEED, 1),
        ((None,), None, ONE_SEED, 0),
        ((79.6, 79.7, None), None, SOME_DIVERGED, 2),
        ((79.6, None), None, SOME_DIVERGED, 1),
        ((None, None), False, "no run trained", 0),  # it does not train: that is an answer
    ],
)
def test_one_seed_or_diverged_runs_leave_a_published_mean_undecided(scores, agrees, decided_by, n):
    row = near("", case(*scores), Published(79.65, 0.2))
    assert (row.agrees, row.decided_by, row.n) == (agrees, decided_by, n)
    assert row.cells()[3] == ("–" if n == 0 else "−0.05" if n == 1 else "+0.00")


@pytest.mark.parametrize(
    ("better", "worse", "agrees", "decided_by"),
    [
        (five(70), five(None), True, "Fisher's exact test"),
        (five(None), five(70), False, "Fisher's exact test"),
        (case(70, 71), case(None, None), None, "Fisher's exact test"),  # chance: one in three
        (case(70, 71, 72), five(None), True, "Fisher's exact test"),
        (case(None, None, None), five(70), False, "Fisher's exact test"),
        (case(70, 71, None, None, None), case(None, None), None, SOME_DIVERGED),
        (case(70, None), case(None, None), None, SOME_DIVERGED),
        (case(None, None), case(None, None), None, SOME_DIVERGED),
        (case(70), case(60), None, ONE_SEED),
        (case(70), case(None), None, ONE_SEED),
        (case(70, 71, None), case(60, 61, 62), None, SOME_DIVERGED),
    ],
)
def test_training_beats_divergence_and_partial_divergence_is_undecided(better, worse, agrees, decided_by):
    row = decided(above("", better, worse))
    assert row.agrees is agrees and row.decided_by.startswith(decided_by)


def test_a_mean_over_nets_of_which_some_learned_nothing_is_shown_and_not_tested():
    half, unstable = five(79), case(10, 10, 60, 61, 62)
    (row,) = correct([above("", half, unstable)])
    assert (row.agrees, row.p, row.decided_by) == (None, None, SOME_GUESS)
    assert row.ours.endswith("against 40.60 ± 27.94 %, 2 of 5 learned nothing)")
    (all_guess,) = correct([above("", half, five(10))])
    assert all_guess.agrees is True  # they are alike: below by more than chance
    (hundred,) = correct([above("", half, unstable, classes=100)])
    assert "learned nothing" not in hundred.ours and hundred.p is not None


def test_two_counts_of_runs_are_both_shown_where_they_differ():
    assert above("", five(79), five(78)).cells()[-1] == "5"
    assert above("", five(79), case(78, 79, 80)).cells()[-1] == "5 and 3"
    assert above("", five(79), case(78, None, 80)).cells()[-1] == "5 and 2"
