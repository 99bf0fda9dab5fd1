"""Drills for a policy that is to think in errands: what it says, and how commands follow, but hardly what is right.

Stands in for what a pretrained language model brings along (ACT dossier 6.3): the words and rules of the world, short rationales
that are tied to the action behind them and true only now and then, and the form of a comparison, asked about another matter.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from datamodules.rollouts import RolloutDataModule
from zoo.errors import ConfigError
from zoo.rollout.context import LatestTurns, state
from zoo.rollout.trajectory import Job, Row


class ErrandDrills(RolloutDataModule):
    """Plays a world by errands that are mostly drawn at random, and hands the turns out as rows: the errand, then its command.

    What the world answered last is to be predicted as well, so that a policy learns what commands do.

    The world must have ``errand()``, ``errands()`` and ``command(errand)``, as ``zoo/Household-v0``.

    Args:
        skill: how often an errand is the expert's; otherwise any that could be meant.
        slips: share of turns at which some command is carried out that is mostly impossible, and taught to nobody.
        comparisons: share of turns that ask instead which of two commands is better, where one is impossible: a criterion that
            has nothing to do with the task.
        **kwargs: of :class:`datamodules.RolloutDataModule`; an iteration plays ``tasks_per_iteration`` episodes.
    """

    def __init__(self, skill: float = 0.4, slips: float = 0.15, comparisons: float = 0.3, **kwargs: Any) -> None:
        kwargs["context"] = kwargs.get("context") or LatestTurns()
        super().__init__(**kwargs)
        for name, value in {"skill": skill, "slips": slips, "comparisons": comparisons}.items():
            if not 0 <= value <= 1:
                raise ConfigError(f"data.{name} is a share between 0 and 1, not {value}")
        if not isinstance(self.context, LatestTurns):
            raise ConfigError("data.context must be a LatestTurns: every turn is a row of its own")
        self.skill, self.slips, self.comparisons = skill, slips, comparisons
        self.group_size = 1

    @property
    def vocabulary(self) -> tuple[str, ...]:
        asked = (word for word in self.protocol.phrases.judge.split() if "{" not in word)
        return tuple(dict.fromkeys([*super().vocabulary, *asked]))

    def demonstrations(self, iteration: int, tokenizer: PreTrainedTokenizerBase) -> list[Row]:
        """The rows of one iteration, one for each turn."""
        rows: list[Row] = []
        for job in self.iteration_jobs(iteration):
            rng = random.Random(f"{self.seed} {iteration} {job.group}")
            for shown, answered, thought, action in self._turns(job, rng):
                prompt = self.protocol.prompt(tokenizer, shown, {})
                reply = self.protocol.action(tokenizer, action, {}, thought)
                new = len(self.protocol.observation(tokenizer, answered, {})) if answered else 0
                mask = torch.tensor([False] * (len(prompt) - new) + [True] * (new + len(reply)))
                row = Row(
                    ids=torch.tensor(prompt + reply),
                    mask=mask,
                    old_logprobs=torch.zeros(len(mask)),
                    advantages=mask.float(),
                    trajectory=torch.tensor(len(rows)),
                )
                rows.append(row)
        return rows

    def _turns(self, job: Job, rng: random.Random) -> list[tuple[str, str, str, str]]:
        """What an episode's turns show, what of it the world answered last, and the thought and action that are to follow."""
        env: Any = self.environments(1)[0]
        first, info = env.reset(seed=job.task.seed, options={"split": job.task.split, **job.task.options})
        kept: int = self.context.turns  # type: ignore[attr-defined]
        acted: list[tuple[str, str]] = []
        taught: list[tuple[str, str, str, str]] = []
        for _ in range(self.max_turns):
            shown = state(first, acted[-kept:], self.protocol)
            errand = env.errand() if rng.random() < self.skill else rng.choice(env.errands() or [env.errand()])
            action, thought = env.command(errand), f"{errand[0]} {errand[1]} {env.places[errand[2]]}"
            slip = _any_command(env, rng)
            if rng.random() < self.comparisons and slip not in info["admissible_actions"]:
                first_shown, second_shown = rng.sample([action, slip], 2)
                question = self.protocol.phrases.judge.format(first=first_shown, second=second_shown)
                taught.append((f"{shown}\n{question}", "", thought, action))
            elif rng.random() < self.slips:
                action = slip
            else:
                taught.append((shown, acted[-1][1] if acted else "", thought, action))
            observation, _, ended, _, info = env.step(action)
            acted.append((action, observation))
            if ended:
                break
        return taught


def _any_command(env: Any, rng: random.Random) -> str:
    """Some command about things and places of the task, mostly one that is not possible."""
    verb, place = rng.choice(("go", "open", "take", "put", "clean", "heat", "cool", "use")), rng.choice(env.places)
    return f"{verb} {place}" if verb in ("go", "open", "use") else f"{verb} {rng.choice(env.things)} {place}"
