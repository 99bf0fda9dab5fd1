"""Numbers of the tables: seeds are the sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000


class Interval(NamedTuple):
    mean: float
    low: float
    high: float


class Paired(NamedTuple):
    """Mean difference over the common seeds, its interval, and the two-sided p value of the sign-flip test."""

    difference: Interval
    p: float
    seeds: int


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % percentile bootstrap interval; always the same for the same values.

    With one value there is nothing to resample: the interval is NaN.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("the mean of no values")
    sample = np.asarray(values, dtype=float)
    if len(sample) == 1:
        return Interval(float(sample[0]), float("nan"), float("nan"))
    drawn = np.random.default_rng(0).integers(len(sample), size=(RESAMPLES, len(sample)))
    low, high = np.percentile(sample[drawn].mean(axis=1), [2.5, 97.5])
    return Interval(float(sample.mean()), float(low), float(high))


def sign_flip_p(differences: Sequence[float]) -> float:
    """Exact two-sided paired permutation test: share of sign assignments with a mean as far from 0 as the one seen."""
    sample = np.asarray(differences, dtype=float)
    sums = np.zeros(1)
    for value in sample:
        sums = np.concatenate([sums + value, sums - value])
    slack = 1e-9 * np.abs(sample).sum()  # the same sum in another order
    return float((np.abs(sums) >= abs(sample.sum()) - slack).mean())


def paired(arm: Mapping[int, float], other: Mapping[int, float]) -> Paired | None:
    """Compare two arms, seed by seed; ``None`` if they share no seed."""
    seeds = sorted(arm.keys() & other.keys())
    if not seeds:
        return None
    differences = [arm[seed] - other[seed] for seed in seeds]
    return Paired(interval(differences), sign_flip_p(differences), len(seeds))


def reached(values: Sequence[float]) -> float:
    """Median episodes to a level; seeds that never reached it are infinite, so the median of two may be as well."""
    return float(np.median(values)) if values else float("nan")
