"""The discounted test of two versions: dossier 1.5 to 1.8, unit tests of 6.7."""

from __future__ import annotations

import json
import math
from math import lgamma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.reskill.thompson import (
    GRID,
    Beta,
    Counts,
    MemoryEstimate,
    Step,
    VersionTest,
    predictive_loglikelihood,
    probability_new_is_better,
    step_of,
)

counts = st.builds(Counts, st.integers(0, 20), st.integers(0, 20))


def test_the_recursion_by_hand() -> None:
    """M = 30, ten episodes of which four succeed: w = 30 / 40."""
    once = Beta().updated(Counts(4, 6), 30)
    assert once == (0.75 + 4, 0.75 + 6)
    assert once.updated(Counts(10, 0), 30) == pytest.approx((0.75 * 4.75 + 10, 0.75 * 6.75))
    assert once.mean == pytest.approx(4.75 / 11.5)


@given(counts, st.integers(1, GRID))
def test_an_arm_without_episodes_is_left_alone(some: Counts, memory: int) -> None:
    posterior = Beta().updated(some, memory)
    assert posterior.updated(Counts(), memory) == posterior


@given(st.lists(counts, max_size=6))
def test_without_discount_it_is_plain_beta_bernoulli(steps: list[Counts]) -> None:
    posterior = Beta()
    for step in steps:
        posterior = posterior.updated(step, math.inf)
    assert posterior == (1 + sum(step.successes for step in steps), 1 + sum(step.failures for step in steps))


@given(st.integers(1, 200), st.integers(1, 60))
def test_what_survives_a_step_comes_to_be_m(memory: int, episodes: int) -> None:
    posterior = Beta()
    for _ in range(2000):
        posterior = posterior.updated(Counts(episodes, 0), memory)
    assert sum(posterior) == pytest.approx(memory + episodes, rel=1e-4)


def test_a_step_at_once_is_not_episode_by_episode() -> None:
    at_once, one_by_one = Beta().updated(Counts(8, 0), 20), Beta()
    for _ in range(8):
        one_by_one = one_by_one.updated(Counts(1, 0), 20)
    assert one_by_one.alpha < at_once.alpha - 0.5


def test_each_version_is_discounted_by_its_own_episodes() -> None:
    test = VersionTest(memory=10)
    test.update(step_of(Counts(10, 0), Counts(0, 0)))
    test.update(step_of(Counts(0, 30), Counts(3, 2)))
    assert test.new == pytest.approx((10.5 * 0.25, 0.5 * 0.25 + 30)) and test.old == pytest.approx(
        (2 / 3 + 3, 2 / 3 + 2)
    )


def test_the_last_step_alone() -> None:
    test = VersionTest(last_step=True)
    test.update(step_of(Counts(9, 0), Counts(0, 9)))
    test.update(step_of(Counts(1, 3), Counts(2, 2)))
    assert (test.new, test.old) == ((2, 4), (3, 3)) and test.episodes == 26


def test_allocation_is_thompsons_and_clipped() -> None:
    rng = np.random.default_rng(0)
    even = VersionTest().allocation(0.15, 10_000, rng)
    assert even == pytest.approx(0.5, abs=0.02)
    sure = VersionTest(new=Beta(90, 10), old=Beta(10, 90))
    assert sure.allocation(0.15, 10_000, rng) == 0.85
    assert VersionTest(new=sure.old, old=sure.new).allocation(0.15, 10_000, rng) == 0.15
    assert VersionTest(new=sure.old, old=sure.new).allocation(0.0, 10_000, rng) == 0.0
    # Pr(Beta(2, 1) > Beta(1, 1)) = E[x] under density 2x = 2/3
    assert probability_new_is_better(Beta(2, 1), Beta(), 200_000, rng) == pytest.approx(2 / 3, abs=0.005)


def test_acceptance_is_strict_and_by_the_margin() -> None:
    assert not VersionTest().accepts()
    better = VersionTest(new=Beta(6, 4), old=Beta(5, 5))
    assert better.accepts() and better.accepts(0.09) and not better.accepts(0.11)
    assert not VersionTest(new=Beta(5, 5), old=Beta(6, 4)).accepts()


def reference(steps: list[Step], memory: float) -> float:
    """The likelihood of one M as a plain loop."""
    total = 0.0
    for version in ("new", "old"):
        a, b = 1.0, 1.0
        for step in steps:
            m, n = step[version].successes, step[version].episodes
            w = memory / (memory + n)
            a, b = max(w * a, 1e-6), max(w * b, 1e-6)
            total += lgamma(n + 1) - lgamma(m + 1) - lgamma(n - m + 1)
            total += lgamma(a + m) + lgamma(b + n - m) - lgamma(a + b + n) - lgamma(a) - lgamma(b) + lgamma(a + b)
            a, b = a + m, b + n - m
    return total


@given(st.lists(st.builds(step_of, counts, counts), min_size=1, max_size=5), st.integers(1, GRID))
def test_likelihood_against_a_loop(steps: list[Step], memory: int) -> None:
    assert predictive_loglikelihood(steps)[memory - 1] == pytest.approx(reference(steps, memory), abs=1e-8)


def drifting(sd: float, seed: int) -> float:
    """M after eight tests of 64 episodes a version and step, whose rate takes a random step in between."""
    rng, estimate = np.random.default_rng(seed), MemoryEstimate()
    for _ in range(8):
        rates, steps = [0.5, 0.5], []
        for _ in range(5):
            rates = [min(max(rate + sd * rng.standard_normal(), 0.05), 0.95) for rate in rates]
            won = [int(rng.binomial(64, rate)) for rate in rates]
            steps.append(step_of(*(Counts(m, 64 - m) for m in won)))
        estimate.finish(steps)
    return estimate.value


def test_m_is_small_under_drift_and_at_the_edge_without() -> None:
    still, moving = [drifting(0.0, seed) for seed in range(5)], [drifting(0.15, seed) for seed in range(5)]
    assert np.median(still) > 1000
    assert max(moving) < 150


def test_m_is_unknown_before_two_tests_and_the_smallest_on_ties() -> None:
    estimate = MemoryEstimate()
    assert estimate.value == math.inf
    estimate.finish([step_of(Counts(1, 9), Counts(9, 1))])
    assert estimate.value == math.inf
    estimate.finish([step_of(Counts(), Counts())])
    assert estimate.value < math.inf
    assert MemoryEstimate(tests=2).value == 1.0


def test_a_stale_skill_is_caught_by_the_discount() -> None:
    """Dossier 6.3: helpful at first, harmful at the end; the share of such versions that are kept falls with M."""

    def kept(memory: float) -> float:
        accepted = 0
        for seed in range(200):
            rng, test = np.random.default_rng(seed), VersionTest(memory)
            for effect in np.linspace(0.15, -0.10, 5):
                new = round(128 * test.allocation(0.15, 1000, rng))
                won = int(rng.binomial(new, 0.4 + effect)), int(rng.binomial(128 - new, 0.4))
                test.update(step_of(Counts(won[0], new - won[0]), Counts(won[1], 128 - new - won[1])))
            accepted += test.accepts()
        return accepted / 200

    assert kept(math.inf) > 0.65 and kept(10) < 0.35


def test_a_test_survives_plain_data() -> None:
    test = VersionTest(memory=40)
    test.update(step_of(Counts(3, 5), Counts(2, 6)))
    assert VersionTest.from_state(json.loads(json.dumps(test.state()))) == test
    assert VersionTest.from_state(json.loads(json.dumps(VersionTest().state()))) == VersionTest()
