"""ClueLock: a lock that opens to the right action for every clue, told by nobody.

Dossier task of ActGuide-RL's claim: an unguided policy that knows the protocol but not the mapping succeeds with
probability ``actions ** -steps``, so no number of rollouts finds a reward, while a few actions of a known solution do.
"""

from __future__ import annotations

import random
from string import printable
from typing import Any, ClassVar

import gymnasium
from gymnasium import spaces

MAX_ACTIONS, MAX_CLUES, MAX_STEPS = 64, 32, 12
_FOLDS = {"test": (0,), "val": (1,), "train": (2, 3, 4, 5, 6, 7)}


class ClueLock(gymnasium.Env[str, str]):
    """An episode shows ``steps`` clues, one after another; each has one right action. A wrong one ends the episode.

    The hidden mapping from clues to actions is the same for every task (``mapping_seed``), so what is learnt on the training
    sequences carries over to the held-out ones: clue sequences are split into disjoint folds by a checksum.

    Args:
        actions: number of actions ``a0 .. a{actions-1}``.
        steps: length of a hard task.
        clues: number of clues; those of an episode are all different.
        mapping_seed: which hidden mapping; ``None`` draws a new one for every task, which leaves nothing to be learnt but
            the protocol and how to follow guidance (the warm start).
        easy_share: share of tasks that are a single step over clues of their own (the first quarter), within reach of
            blind sampling. Hard tasks use the other clues, so easy ones teach nothing about them.
    """

    vocabulary: ClassVar[tuple[str, ...]] = (
        "lock",
        *(f"c{clue}" for clue in range(MAX_CLUES)),
        *(f"a{action}" for action in range(MAX_ACTIONS)),
        *(str(step) for step in range(1, MAX_STEPS + 1)),
        *("open", "wrong"),
    )

    def __init__(
        self,
        actions: int = 8,
        steps: int = 6,
        clues: int = 16,
        mapping_seed: int | None = 0,
        easy_share: float = 0.0,
    ) -> None:
        if not 2 <= actions <= MAX_ACTIONS:
            raise ValueError(f"ClueLock: actions must be 2 to {MAX_ACTIONS}, not {actions}")
        if not steps <= clues <= MAX_CLUES or not 1 <= steps <= MAX_STEPS:
            raise ValueError(f"ClueLock needs 1 <= steps <= {MAX_STEPS} and steps <= clues <= {MAX_CLUES}")
        if not 0 <= easy_share <= 1 or (easy_share and steps > clues - clues // 4):
            raise ValueError("ClueLock: easy_share is a share, and three quarters of the clues must cover a hard task")
        self.actions, self.steps, self.clues = actions, steps, clues
        self.mapping_seed, self.easy_share = mapping_seed, easy_share
        self.observation_space = spaces.Text(64, charset=printable)
        self.action_space = spaces.Text(8, charset=printable)
        self._choices = [f"a{action}" for action in range(actions)]
        self.sequence: list[int] = []
        self.solution: list[str] = []
        self.step_index = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the task that ``seed`` names.

        Args:
            seed: the task; ``None`` draws one.
            options: ``{"split": "train" | "val" | "test"}``; ``train`` if absent.
        """
        super().reset(seed=seed)
        split = (options or {}).get("split", "train")
        if split not in _FOLDS:
            raise ValueError(f"ClueLock: split must be one of {sorted(_FOLDS)}, not {split!r}")
        number = seed if seed is not None else int(self.np_random.integers(2**31))
        rng = random.Random(f"{split} {number}")
        pool, length = list(range(self.clues)), self.steps
        if self.easy_share:
            easy = rng.random() < self.easy_share
            pool, length = (pool[: self.clues // 4], 1) if easy else (pool[self.clues // 4 :], self.steps)
        self.sequence = rng.sample(pool, length)
        while length > 1 and _checksum(self.sequence) not in _FOLDS[split]:
            self.sequence = rng.sample(pool, length)
        mapping = random.Random(rng.random() if self.mapping_seed is None else f"mapping {self.mapping_seed}")
        answers = [mapping.randrange(self.actions) for _ in range(MAX_CLUES)]
        self.solution = [f"a{answers[clue]}" for clue in self.sequence]
        self.step_index = 0
        info = self._info()
        if split == "train":
            info["action_data"] = list(self.solution)
        return f"lock {self._clue()}", info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = action == self.solution[self.step_index]
        self.step_index += 1
        if not right:
            return "wrong", 0.0, True, False, {"success": False}
        if self.step_index == len(self.sequence):
            return "open", 1.0, True, False, {"success": True}
        return self._clue(), 0.0, False, False, self._info()

    def _clue(self) -> str:
        return f"c{self.sequence[self.step_index]} {self.step_index + 1}"

    def _info(self) -> dict[str, Any]:
        return {
            "success": False,
            "length": len(self.sequence),
            "expert_action": self.solution[self.step_index],
            "admissible_actions": self._choices,
        }


def _checksum(sequence: list[int]) -> int:
    return sum((place + 1) * clue for place, clue in enumerate(sequence)) % 8
