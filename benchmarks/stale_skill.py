"""``python -m benchmarks.stale_skill``: what the discount of old outcomes decides, in a world of coins (ReSkill dossier 6.3).

Two versions are tested over five steps of 128 episodes while success rises from .3 to .6. The new one's effect is constant, or
changes inside the test. ``benchmarks/claims/results/reskill_stale.csv`` gets the share of tests that end with the new version.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np

from zoo.reskill.thompson import Counts, VersionTest, step_of

RESULTS = Path("benchmarks/claims/results/reskill_stale.csv")
STEPS, EPISODES, TESTS = 5, 128, 2000
EFFECTS = {
    "harmful": (-0.05, -0.05),
    "none": (0.0, 0.0),
    "helpful": (0.05, 0.05),
    "stale": (0.15, -0.10),  # helps the policy of the first step, hurts that of the last
    "disruptive": (-0.15, 0.10),
}
MEMORIES = {"none": math.inf, "200": 200.0, "50": 50.0, "10": 10.0}


def accepted(effect: tuple[float, float], memory: float, uniform: bool, rng: np.random.Generator) -> bool:
    """Whether one test ends with the new version.

    Args:
        effect: on the rate of success, in the first and in the last step.
        memory: ``M``.
        uniform: half of the episodes for each version, instead of Thompson's share.
        rng: of outcomes and shares.
    """
    test = VersionTest(memory)
    for rate, shift in zip(np.linspace(0.3, 0.6, STEPS), np.linspace(*effect, STEPS), strict=True):
        share = 0.5 if uniform else test.allocation(0.15, 1000, rng)
        new = int(rng.binomial(EPISODES, share))
        won = int(rng.binomial(new, rate + shift)), int(rng.binomial(EPISODES - new, rate))
        test.update(step_of(Counts(won[0], new - won[0]), Counts(won[1], EPISODES - new - won[1])))
    return test.accepts()


def main() -> None:
    rows = []
    for name, effect in EFFECTS.items():
        row: dict[str, str | float] = {"effect": name, "first": effect[0], "last": effect[1]}
        for label, memory in MEMORIES.items():
            rng = np.random.default_rng(0)
            row[f"discount_{label}"] = sum(accepted(effect, memory, False, rng) for _ in range(TESTS)) / TESTS
        rng = np.random.default_rng(0)
        row["uniform"] = sum(accepted(effect, math.inf, True, rng) for _ in range(TESTS)) / TESTS
        rows.append(row)
        print(row, flush=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
