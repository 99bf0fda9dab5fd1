"""Drills for a policy that is to think in errands: what it says, and how commands follow, but hardly what is right.

Stands in for what a pretrained language model brings along (ACT dossier 6.3): the words and rules of the world, short rationales
that are tied to the action behind them and true only now and then, and the form of a comparison, asked about another matter.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from datamodules.rollouts import RolloutDataModule
from zoo.errors import ConfigError
from zoo.rollout.context import LatestTurns, state
from zoo.rollout.trajectory import Job, Row


class Drill(NamedTuple):
    """One turn to be learnt from."""

    shown: str
    acted: str  # the latest command shown, if it was meant
    answered: str  # what the world answered to it
    thought: str
    action: str


class ErrandDrills(RolloutDataModule):
    """Plays a world by errands that are mostly drawn at random, and hands the turns out as rows: the errand, then its command.

    The latest command and what the world answered are to be predicted as well, so that a policy learns what commands do, and
    to act without a thought. The rows of an episode begin alike, so with all turns in view they cost little more than one.

    The world must have ``errand()``, ``errands()`` and ``command(errand)``, as ``zoo/Household-v0``.

    Args:
        skill: how often a new errand is the expert's; otherwise any that could be meant.
        persistence: how often the errand of the turn before is gone on with, while it still leads somewhere.
        slips: share of turns at which some command is carried out that is mostly impossible, and taught to nobody.
        comparisons: share of turns that ask instead which of two commands is better; the other one belongs to another errand, or
            is some command that is mostly impossible. So the form is known, and both answers are likely.
        **kwargs: of :class:`datamodules.RolloutDataModule`; an iteration plays ``tasks_per_iteration`` episodes.
    """

    def __init__(
        self,
        skill: float = 0.4,
        persistence: float = 0.8,
        slips: float = 0.15,
        comparisons: float = 0.3,
        **kwargs: Any,
    ) -> None:
        kwargs["context"] = kwargs.get("context") or LatestTurns()
        super().__init__(**kwargs)
        shares = {"skill": skill, "persistence": persistence, "slips": slips, "comparisons": comparisons}
        for name, value in shares.items():
            if not 0 <= value <= 1:
                raise ConfigError(f"data.{name} is a share between 0 and 1, not {value}")
        if not isinstance(self.context, LatestTurns):
            raise ConfigError("data.context must be a LatestTurns: every turn is a row of its own")
        self.skill, self.persistence, self.slips, self.comparisons = skill, persistence, slips, comparisons
        self.group_size = 1

    @property
    def vocabulary(self) -> tuple[str, ...]:
        asked = (word for word in self.protocol.phrases.judge.split() if "{" not in word)
        return tuple(dict.fromkeys([*super().vocabulary, *asked]))

    def demonstrations(self, iteration: int, tokenizer: PreTrainedTokenizerBase) -> list[Row]:
        """The rows of one iteration, one for each turn."""
        rows: list[Row] = []
        for episode, job in enumerate(self.iteration_jobs(iteration)):
            for drill in self._turns(job, random.Random(f"{self.seed} {iteration} {job.group}")):
                prompt = self.protocol.prompt(tokenizer, drill.shown, {})
                reply = self.protocol.action(tokenizer, drill.action, {}, drill.thought)
                seen = f"{drill.acted} {drill.answered}".strip()
                learnt = len(reply) + (len(self.protocol.observation(tokenizer, seen, {})) if seen else 0)
                ids = torch.tensor(prompt + reply)
                mask = torch.arange(len(ids)) >= len(ids) - learnt
                row = Row(
                    ids=ids,
                    mask=mask,
                    old_logprobs=torch.zeros(len(ids)),
                    advantages=mask.float(),
                    trajectory=torch.tensor(episode),
                )
                rows.append(row)
        return rows

    def _turns(self, job: Job, rng: random.Random) -> list[Drill]:
        """What an episode teaches."""
        env: Any = self.environments(1)[0]
        first, info = env.reset(seed=job.task.seed, options={"split": job.task.split, **job.task.options})
        kept: int = self.context.turns  # type: ignore[attr-defined]
        acted: list[tuple[str, str]] = []
        taught: list[Drill] = []
        latest, errand = ("", ""), None
        for _ in range(self.max_turns):
            shown = state(first, acted[-kept:], self.protocol)
            possible = info["admissible_actions"]
            errand = self._errand(env, errand if errand and env.command(errand) in possible else None, rng)
            action, thought = env.command(errand), f"{errand[0]} {errand[1]} {env.places[errand[2]]}"
            slip, meant = _any_command(env, rng), True
            other = rng.choice([slip, env.command(rng.choice(env.errands() or [env.errand()]))])
            if rng.random() < self.comparisons and other != action:
                first_shown, second_shown = rng.sample([action, other], 2)
                question = self.protocol.phrases.judge.format(first=first_shown, second=second_shown)
                taught.append(Drill(f"{shown}\n{question}", "", "", thought, action))
            elif rng.random() < self.slips:
                action, meant = slip, False
            else:
                taught.append(Drill(shown, *latest, thought, action))
            observation, _, ended, _, info = env.step(action)
            latest = (action if meant else "", observation)
            acted.append((action, observation))
            if ended:
                break
        return taught

    def _errand(self, env: Any, before: Any, rng: random.Random) -> Any:
        """What is meant to be done now."""
        sensible = env.errands() or [env.errand()]
        if before in sensible and rng.random() < self.persistence:
            return before
        return env.errand() if rng.random() < self.skill else rng.choice(sensible)


def _any_command(env: Any, rng: random.Random) -> str:
    """Some command about things and places of the task, mostly one that is not possible."""
    verb, place = rng.choice(("go", "open", "take", "put", "clean", "heat", "cool", "use")), rng.choice(env.places)
    return f"{verb} {place}" if verb in ("go", "open", "use") else f"{verb} {rng.choice(env.things)} {place}"
