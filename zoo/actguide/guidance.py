"""How much guidance is just enough (ActGuide-RL, arXiv 2605.12004, "minimal intervention")."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor


@dataclass
class StrengthSearch:
    """Bisection for the smallest number of leading actions that makes a task solvable.

    Success is taken to be monotone in the strength. The answer is the upper end of the interval: always a strength that a
    probe has passed, or all actions if none has, also when the budget of probes ends early. (The released code returns the
    lower end there, which may be too weak, and starts at 0, which is no guidance; the paper starts at 1.)

    Args:
        actions: number of actions that are known.
        budget: probes that may be made.
    """

    actions: int
    budget: int
    low: int = field(init=False)
    high: int = field(init=False)

    def __post_init__(self) -> None:
        self.low, self.high = min(1, self.actions), self.actions

    @property
    def probe(self) -> int | None:
        """The strength to be tried next, ``None`` when the search is over."""
        return (self.low + self.high) // 2 if self.low < self.high and self.budget > 0 else None

    def report(self, success: bool) -> None:
        """Say whether any rollout at :attr:`probe` succeeded."""
        probed = self.probe
        if probed is None:
            raise ValueError("the search is over, nothing was asked for")
        self.budget -= 1
        if success:
            self.high = probed
        else:
            self.low = probed + 1

    @property
    def strength(self) -> int:
        """The smallest strength known to suffice."""
        return self.high


def fixed_strength(actions: int, ratio: float) -> int:
    """``ceil(ratio * actions)`` leading actions, the non-adaptive control."""
    return min(actions, math.ceil(ratio * actions))


def corrupt(actions: Sequence[str], admissible: Sequence[str], share: float, seed: int) -> list[str]:
    """Replace a share of the actions by random ones (the paper's noise study); the same for every visit of a task."""
    rng = random.Random(f"hint noise {seed}")
    return [rng.choice(admissible) if rng.random() < share else action for action in actions]


Correction = Literal["token", "luffy", "none"]


def guided_denominator(logprobs: Tensor, old_logprobs: Tensor, guided: Tensor, correction: Correction) -> Tensor:
    """Denominator of the importance ratio under mixed-policy optimisation.

    Args:
        logprobs: ``[rows, length]`` of the current policy without guidance.
        old_logprobs: ``[rows, length]`` of the behaviour policy, which saw the guidance in guided rows.
        guided: ``[rows]`` true for rows sampled under guidance.
        correction: ``token`` keeps the behaviour policy's log-probabilities (the paper's cross-view ratio); the other two take
            the current policy's own in guided rows, so that the ratio there is 1.
    """
    if correction == "token":
        return old_logprobs
    return torch.where(guided[:, None], logprobs.detach(), old_logprobs)


def luffy_weight(logprobs: Tensor, old_logprobs: Tensor, guided: Tensor, gamma: float) -> Tensor:
    """``f(r) = r / (r + gamma)`` on guided rows, 1 elsewhere, without gradient (LUFFY, arXiv 2504.14945, policy shaping)."""
    ratio = (logprobs.detach() - old_logprobs).clamp(-20, 20).exp()
    return torch.where(guided[:, None], ratio / (ratio + gamma), torch.ones_like(ratio))
