import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp, ttest_ind, ttest_ind_from_stats

from equalbits._statistics import Sample, equivalence, holm, one_sample, welch

scores = st.lists(st.floats(50, 100, width=32), min_size=2, max_size=20)


@given(scores, scores)
def test_welch_agrees_with_scipy(first, second):
    one, two = Sample.of(first), Sample.of(second)
    assume(min(one.std, two.std) > 1e-3)
    found, reference = welch(one, two), ttest_ind(first, second, equal_var=False)
    interval = reference.confidence_interval()
    assert found.p == pytest.approx(reference.pvalue, rel=1e-6, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-6)


@given(scores, st.floats(50, 100, width=32))
def test_a_one_sample_t_agrees_with_scipy(values, published):
    sample = Sample.of(values)
    assume(sample.std > 1e-3)
    found, reference = one_sample(sample, published), ttest_1samp(values, published)
    interval = reference.confidence_interval()
    assert found.p == pytest.approx(reference.pvalue, rel=1e-6, abs=1e-12)
    expected = (interval.low - published, interval.high - published)
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(scores, scores, st.floats(0.05, 5))
def test_equivalence_is_the_larger_of_two_one_sided_tests(first, second, margin):
    one, two = Sample.of(first), Sample.of(second)
    assume(one.std + two.std > 1e-3)

    def one_sided(shift, alternative):
        return ttest_ind_from_stats(
            one.mean + shift, one.std, one.n, two.mean, two.std, two.n, equal_var=False, alternative=alternative
        ).pvalue

    expected = max(one_sided(margin, "greater"), one_sided(-margin, "less"))
    assert equivalence(one, two, margin) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_one_seed_decides_nothing():
    assert welch(Sample.of([80.0]), Sample.of([70.0, 71.0])) is None
    assert equivalence(Sample.of([80.0, 80.1]), Sample.of([80.0]), 0.3) is None
    assert one_sample(Sample.of([80.0]), 70.0) is None


def test_equal_scores_without_scatter_are_equivalent_and_do_not_differ():
    same = Sample.of([80.0, 80.0])
    assert welch(same, same).p == 1.0
    assert equivalence(same, same, 0.3) == 0.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p_values):
    adjusted = holm(p_values)
    assert all(before <= after <= 1 for before, after in zip(p_values, adjusted, strict=True))
    assert min(adjusted) == min(1.0, len(p_values) * min(p_values))
    ordered = [after for _, after in sorted(zip(p_values, adjusted, strict=True))]
    assert ordered == sorted(ordered)
