"""What a few prompts can show: the interval's coverage, the sign test and Holm's correction."""

import itertools
import math

import numpy as np
import pytest

from collapse.errors import Undefined
from collapse.statistics import MIN_PROMPTS, holm, interval, mean, sign_test, smallest_p

DISTRIBUTIONS = {
    "normal": (lambda generator, n: generator.normal(size=n), 0.0),
    "uniform": (lambda generator, n: generator.uniform(size=n), 0.5),
    "exponential": (lambda generator, n: generator.exponential(size=n), 1.0),
    # Shares of 12 layers: few distinct values, so many ties.
    "shares": (lambda generator, n: generator.binomial(12, 0.2, size=n) / 12, 0.2),
}


def simulated(name, n, repetitions=1000):
    """Share of intervals that hold the true mean, that lie above it, and that lie below it."""
    draw, truth = DISTRIBUTIONS[name]
    generator = np.random.default_rng(20)
    ends = np.array([interval(draw(generator, n)) for _ in range(repetitions)])
    above, below = np.mean(ends[:, 0] > truth), np.mean(ends[:, 1] < truth)
    return 1 - above - below, above, below


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_twenty_prompts_are_covered_in_93_to_97_percent(name):
    covered, *_ = simulated(name, 20)
    assert 0.93 <= covered <= 0.97


@pytest.mark.parametrize(
    ("name", "least"), [("normal", 0.93), ("uniform", 0.93), ("shares", 0.92), ("exponential", 0.89)]
)
def test_four_prompts_are_covered_nearly_as_often(name, least):
    covered, *_ = simulated(name, 4)
    assert covered >= least


@pytest.mark.parametrize("n", [3, 4, 9])
def test_an_effect_that_is_not_there_is_found_in_at_most_5_percent(n):
    """Either direction of a symmetric quantity: what `holds` needs."""
    _, above, below = simulated("normal", n)
    assert above <= 0.05 and below <= 0.05


@pytest.mark.parametrize("n", [3, 4, 9])
def test_under_skew_an_effect_that_is_not_there_is_found_more_often_on_the_short_side(n):
    """As docs/claims.md says: more than the 2.5 % that an interval promises each side, and at most 11 %."""
    _, above, below = simulated("exponential", n, repetitions=1500)
    assert above <= 0.025 and 0.05 < below <= 0.11


def test_equal_values_leave_no_width_and_no_rounding():
    assert interval([0.1] * 3) == (0.1, 0.1)
    assert interval([0.0] * 4) == (0.0, 0.0)


@pytest.mark.parametrize("n", range(MIN_PROMPTS))
def test_too_few_prompts_have_no_interval(n):
    with pytest.raises(Undefined, match=f"{n} prompt.*needs 3"):
        interval([0.5] * n)


def test_nearly_equal_values_give_finite_ends():
    """Plain resampling draws the three equal values alone in a third of the samples, and its interval has no end."""
    low, high = interval([1.0, 1.0, 1.0, 0.98])
    assert 0.9 < low < 0.995 < high < 1.1


def test_the_interval_knows_neither_order_nor_chance():
    values = [0.3, -1.0, 2.5, 0.7]
    assert len({interval(order) for order in itertools.permutations(values)}) == 1


def test_the_interval_moves_and_stretches_with_the_values():
    values = np.array([0.3, -1.0, 2.5, 0.7, 0.1])
    low, high = interval(values)
    np.testing.assert_allclose(interval(3 * values + 2), (3 * low + 2, 3 * high + 2))


def test_the_interval_of_a_skewed_quantity_is_skewed():
    low, high = interval([0.0, 0.1, 0.2, 3.0, 0.1])
    centre = np.mean([0.0, 0.1, 0.2, 3.0, 0.1])
    assert high - centre > 2 * (centre - low)


def test_the_mean_of_equal_values_is_that_value():
    assert mean([0.1, 0.1, 0.1]) == 0.1 != sum([0.1, 0.1, 0.1]) / 3
    assert mean([1.0, 2.0]) == 1.5


@pytest.mark.parametrize("n", range(1, 9))
def test_the_sign_test_counts_the_outcomes_of_n_coins(n):
    outcomes = [sum(faces) for faces in itertools.product((0, 1), repeat=n)]
    for k in range(n + 1):
        assert sign_test(k, n) == sum(heads >= k for heads in outcomes) / len(outcomes)
    assert smallest_p(n) == 2.0**-n


def test_one_prompt_shows_nothing_and_four_are_not_enough():
    assert smallest_p(1) == 0.5
    assert smallest_p(4) == 0.0625 > 0.05 > smallest_p(5)


def test_a_hundred_prompts_do_not_overflow():
    assert math.isclose(sign_test(50, 100), 0.5398, abs_tol=1e-4)
    assert sign_test(0, 2000) == 1.0


def test_holm_steps_down():
    # As R's p.adjust(c(0.01, 0.02, 0.03, 0.005), "holm").
    assert holm([0.01, 0.02, 0.03, 0.005]) == pytest.approx([0.03, 0.04, 0.04, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.04]) == [0.04]
    assert holm([]) == []


def test_ties_among_p_values_share_the_larger_factor():
    assert holm([0.01, 0.01]) == [0.02, 0.02]


@pytest.mark.parametrize("n", [9, 20])
def test_scorecards_without_any_effect_have_a_corrected_p_below_5_percent_in_at_most_5_percent(n):
    generator = np.random.default_rng(3)
    supporting = generator.binomial(n, 0.5, size=(2000, 18))
    by_count = [sign_test(k, n) for k in range(n + 1)]
    false = [min(holm([by_count[k] for k in scorecard])) <= 0.05 for scorecard in supporting]
    assert np.mean(false) <= 0.05
