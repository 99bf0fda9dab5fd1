"""A world of two doors, twice: small enough to learn its form in seconds and solved by chance in a quarter of the episodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import torch
from gymnasium import spaces

from datamodules import RolloutDataModule
from datamodules.demonstrations import DemonstrationDataModule
from tests.conftest import ARCHITECTURE
from tests.recording import quiet_trainer
from zoo.imitation.module import ImitationPolicy
from zoo.reskill.module import ReSkillCoEvolver
from zoo.rollout.context import LatestTurns
from zoo.rollout.protocol import WordProtocol

DOORS = ("red", "blue")
WRITTEN = [
    [{"op": "add", "skill": {"name": f"try-{door}-{n}", "when_to_use": "always", "action": f"go {door}"}}]
    for n in range(3)
    for door in DOORS
]


class Doors(gymnasium.Env[str, str]):
    """Behind one door, drawn for each of two rooms, is the way out; nothing tells which."""

    vocabulary: ClassVar[tuple[str, ...]] = ("doors", "then", "go", *DOORS)

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Text(64), spaces.Text(64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.way, self.right = [DOORS[int(n)] for n in self.np_random.integers(2, size=2)], 0
        played = [f"go {DOORS[int(n)]}" for n in self.np_random.integers(2, size=2)]
        return "doors", {"success": False, "action_data": played, "roles": {"red": "target"}}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.right += action == f"go {self.way.pop()}"
        success = self.right == 2
        return "then doors", float(success), not self.way, False, {"success": success}


gymnasium.register("tests/Doors-v0", Doors)


def data(kind: type[RolloutDataModule] = RolloutDataModule, **changes: Any) -> RolloutDataModule:
    settings: dict[str, Any] = {
        "environment": "tests/Doors-v0",
        "protocol": WordProtocol(4, notes="after"),
        "context": LatestTurns(64, 4),
        "max_turns": 2,
        "train_tasks": 64,
        "val_tasks": 8,
        "test_tasks": 8,
        "tasks_per_iteration": 4,
        "group_size": 6,
        "minibatches": 2,
        "seed": 0,
    }
    return kind(**{**settings, **changes})


def warm_start(folder: Path) -> Path:
    """A policy that goes through doors at random."""
    torch.manual_seed(0)
    start = ImitationPolicy(architecture=dict(ARCHITECTURE, initializer_range=0.1), learning_rate=1e-2)
    shown = data(DemonstrationDataModule, tasks_per_iteration=32)
    quiet_trainer(max_epochs=25).fit(start, datamodule=shown)
    start.save_pretrained(folder)
    return folder


def evolver(weights: Path, **changes: Any) -> ReSkillCoEvolver:
    settings: dict[str, Any] = {
        "weights": str(weights),
        "author": "scripted",
        "author_args": {"bundles": WRITTEN},
        "learning_rate": 1e-3,
        "window": 2,
        "min_episodes": 4,
        "min_reservoir": 4,
        "draws": 200,
    }
    return ReSkillCoEvolver(**{**settings, **changes})


def main(ranks: int, weights: str, file: str) -> None:
    """``python -m tests.reskill.doors RANKS WEIGHTS FILE``: a short fit on CPU ranks, and the state it came to."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = evolver(Path(weights), train_policy=False)
    trainer = quiet_trainer(max_epochs=6, devices=ranks, strategy="ddp" if ranks > 1 else "auto")
    trainer.fit(module, datamodule=data())
    torch.save(module.evolution.state(), f"{file}.{trainer.global_rank}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
