"""A thousand steps of each world, with actions drawn from those it takes."""

from __future__ import annotations

import random
from typing import Any

import gymnasium

import datamodules.environments  # noqa: F401 - registers zoo/*
from benchmarks.speed.worker import Step

PEER = "nothing"
VARIANTS: dict[str, dict[str, Any]] = {
    name: {"name": name} for name in sorted(gymnasium.registry) if name.startswith("zoo/")
}


def ours(name: str) -> Step:
    env, draws = gymnasium.make(name, disable_env_checker=True).unwrapped, random.Random(0)

    def step() -> None:
        over = True
        for _ in range(1000):
            if over:
                _, info = env.reset(seed=draws.randrange(100_000), options={"split": "train"})
            actions = info.get("admissible_actions") or env.vocabulary
            _, _, terminated, truncated, info = env.step(draws.choice(actions))
            over = terminated or truncated

    return step


def check(name: str) -> None:
    ours(name)()
