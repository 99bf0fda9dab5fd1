"""The test of two versions of a bank on the episodes of training itself (ReSkill, arXiv 2606.01619; dossier 1.5-1.8).

Both versions have a Beta posterior over their rate of success. Before the counts of a step are added, those of before are
multiplied by ``w = M / (M + n)``, where ``n`` counts the new episodes of that version: the policy learns meanwhile, so old
outcomes say less. ``M`` is how many old episodes a version may remember, and is itself estimated from finished tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

Version = Literal["new", "old"]
VERSIONS: tuple[Version, Version] = ("new", "old")
Memory = Literal["dynamic", "none", "last_step"] | int
GRID = 2000  # M is one of 1 to GRID
_LEAST = 1e-6  # of a discounted parameter, in a likelihood


class Counts(NamedTuple):
    """Finished episodes of one version in one step: successes and failures."""

    successes: int = 0
    failures: int = 0

    @property
    def episodes(self) -> int:
        return self.successes + self.failures


Step = dict[Version, Counts]


class Beta(NamedTuple):
    """A posterior over a rate of success; at first every rate is as likely as another."""

    alpha: float = 1.0
    beta: float = 1.0

    @property
    def mean(self) -> float:
        return self.alpha / (self.alpha + self.beta)

    def updated(self, counts: Counts, memory: float) -> Beta:
        """After the counts of one step: ``alpha <- w alpha + m``, ``beta <- w beta + n - m`` with ``w = M / (M + n)``.

        Args:
            counts: ``m`` successes among ``n`` episodes; with ``n = 0`` nothing changes.
            memory: ``M``; infinity discounts nothing.
        """
        weight = 1.0 if math.isinf(memory) else memory / (memory + counts.episodes)
        return Beta(weight * self.alpha + counts.successes, weight * self.beta + counts.failures)


def probability_new_is_better(new: Beta, old: Beta, draws: int, generator: Generator) -> float:
    """``Pr(θ_new > θ_old)`` by Monte Carlo, as in the paper."""
    return float((generator.beta(*new, draws) > generator.beta(*old, draws)).mean())


_FLAT = Beta()


@dataclass
class VersionTest:
    """One test, from the first episode under a new version to its decision.

    Args:
        memory: ``M`` of the discount, infinity for none; fixed for the whole test.
        last_step: forget everything before the latest step.

    Attributes:
        new, old: posteriors.
        steps: counts of every step so far.
    """

    memory: float = math.inf
    last_step: bool = False
    new: Beta = _FLAT
    old: Beta = _FLAT
    steps: list[Step] = field(default_factory=list)

    def update(self, step: Step) -> None:
        """Take in one training step's counts, all at once (per episode the discount would be another)."""
        self.steps.append(step)
        new, old = (_FLAT, _FLAT) if self.last_step else (self.new, self.old)
        self.new, self.old = new.updated(step["new"], self.memory), old.updated(step["old"], self.memory)

    @property
    def episodes(self) -> int:
        return sum(counts.episodes for step in self.steps for counts in step.values())

    def allocation(self, clip: float, draws: int, generator: Generator) -> float:
        """Share of episodes that are to be played under the new version, between ``clip`` and ``1 - clip``."""
        chance = probability_new_is_better(self.new, self.old, draws, generator)
        return min(max(chance, clip), 1 - clip)

    def accepts(self, margin: float = 0.0) -> bool:
        """Whether the new version's posterior mean is higher, strictly, and by more than ``margin`` (the paper has none)."""
        return self.new.mean - self.old.mean > margin

    def state(self) -> dict[str, Any]:
        steps = [[list(step[version]) for version in VERSIONS] for step in self.steps]
        memory = None if math.isinf(self.memory) else self.memory
        return {
            "memory": memory,
            "last_step": self.last_step,
            "new": list(self.new),
            "old": list(self.old),
            "steps": steps,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        memory = math.inf if state["memory"] is None else state["memory"]
        steps = [step_of(*(Counts(*counts) for counts in step)) for step in state["steps"]]
        return cls(memory, state["last_step"], Beta(*state["new"]), Beta(*state["old"]), steps)


def step_of(new: Counts, old: Counts) -> Step:
    return {"new": new, "old": old}


def predictive_loglikelihood(steps: Sequence[Step]) -> NDArray[np.float64]:
    """How well each ``M`` of 1 to ``GRID`` foresaw a finished test, ``[GRID]``.

    The test is replayed from ``Beta(1, 1)``; before each step's counts are added they are scored under the discounted
    posterior, ``log BetaBinomial(m | n, w alpha, w beta)``, summed over both versions.
    """
    memory = torch.arange(1, GRID + 1, dtype=torch.float64)
    total = torch.zeros(GRID, dtype=torch.float64)
    for version in VERSIONS:
        alpha, beta = torch.ones_like(memory), torch.ones_like(memory)
        for step in steps:
            won, lost = step[version]
            weight = memory / (memory + won + lost)
            alpha, beta = (weight * alpha).clamp_min(_LEAST), (weight * beta).clamp_min(_LEAST)
            total += _log_beta(alpha + won, beta + lost) - _log_beta(alpha, beta)
            total += math.lgamma(won + lost + 1) - math.lgamma(won + 1) - math.lgamma(lost + 1)
            alpha, beta = alpha + won, beta + lost
    return total.numpy()


def _log_beta(alpha: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    return torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)


@dataclass
class MemoryEstimate:
    """``M``, estimated from all finished tests; used from the next test on.

    Attributes:
        loglikelihood: of each ``M``, summed over the tests.
        tests: how many were finished. Below two nothing is discounted.
    """

    loglikelihood: NDArray[np.float64] = field(default_factory=lambda: np.zeros(GRID))
    tests: int = 0

    def finish(self, steps: Sequence[Step]) -> None:
        self.loglikelihood = self.loglikelihood + predictive_loglikelihood(steps)
        self.tests += 1

    @property
    def value(self) -> float:
        """The likeliest ``M``, the smallest on ties; infinity before two tests."""
        return float(self.loglikelihood.argmax() + 1) if self.tests >= 2 else math.inf
