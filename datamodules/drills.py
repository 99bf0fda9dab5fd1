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
from zoo.reskill.lexicon import AVOID, TRY, action_class, fill
from zoo.rollout.context import LatestTurns, state
from zoo.rollout.trajectory import Job, Row


class Drill(NamedTuple):
    """One turn to be learnt from."""

    shown: str
    notes: str  # advice that stands behind it
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
        advised: share of turns that show skills: advice to try or to avoid a class of commands or a single one, drawn at random,
            right or wrong (ReSkill dossier 6.2: the prior to follow instructions). The world must tell ``roles``.
        obedience: how often advice is then followed, where it can be.
        **kwargs: of :class:`datamodules.RolloutDataModule`; an iteration plays ``tasks_per_iteration`` episodes.
    """

    def __init__(
        self,
        skill: float = 0.4,
        persistence: float = 0.8,
        slips: float = 0.15,
        comparisons: float = 0.3,
        advised: float = 0.0,
        obedience: float = 0.9,
        **kwargs: Any,
    ) -> None:
        kwargs["context"] = kwargs.get("context") or LatestTurns()
        super().__init__(**kwargs)
        shares = {"skill": skill, "persistence": persistence, "slips": slips, "comparisons": comparisons}
        shares |= {"advised": advised, "obedience": obedience}
        for name, value in shares.items():
            if not 0 <= value <= 1:
                raise ConfigError(f"data.{name} is a share between 0 and 1, not {value}")
        if not isinstance(self.context, LatestTurns):
            raise ConfigError("data.context must be a LatestTurns: every turn is a row of its own")
        if advised and getattr(self.protocol, "notes", "after") != "after":
            raise ConfigError("data.advised shows skills behind the state: take data.protocol with notes: after")
        self.skill, self.persistence, self.slips, self.comparisons = skill, persistence, slips, comparisons
        self.advised, self.obedience = advised, obedience
        self.group_size = 1

    @property
    def vocabulary(self) -> tuple[str, ...]:
        asked = (word for word in self.protocol.phrases.judge.split() if "{" not in word) if self.comparisons else ()
        return tuple(dict.fromkeys([*super().vocabulary, *asked]))

    def demonstrations(self, iteration: int, tokenizer: PreTrainedTokenizerBase) -> list[Row]:
        """The rows of one iteration, one for each turn."""
        rows: list[Row] = []
        for episode, job in enumerate(self.iteration_jobs(iteration)):
            for drill in self._turns(job, random.Random(f"{self.seed} {iteration} {job.group}")):
                prompt = self.protocol.prompt(tokenizer, drill.shown, {}, drill.notes)
                reply = self.protocol.action(tokenizer, drill.action, {}, drill.thought)
                seen = f"{drill.acted} {drill.answered}".strip()
                told = len(self.protocol.observation(tokenizer, seen, {})) if seen else 0
                state_ends = len(self.protocol.prompt(tokenizer, drill.shown, {})) if drill.notes else len(prompt)
                ids = torch.tensor(prompt + reply)
                place = torch.arange(len(ids))
                mask = (place >= len(prompt)) | ((place >= state_ends - told) & (place < state_ends))
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
        roles = info.get("roles", {})
        if self.advised and not roles:
            raise ConfigError(f"{self.environment} tells no roles, which data.advised needs")
        kept: int = self.context.turns  # type: ignore[attr-defined]
        acted: list[tuple[str, str]] = []
        taught: list[Drill] = []
        latest, errand = ("", ""), None
        for _ in range(self.max_turns):
            shown = state(first, acted[-kept:], self.protocol)
            possible = info["admissible_actions"]
            errand = self._errand(env, errand if errand and env.command(errand) in possible else None, rng)
            action, thought, notes = env.command(errand), "", ""
            if getattr(self.protocol, "thoughts", "none") != "none":
                thought = f"{errand[0]} {errand[1]} {env.places[errand[2]]}"
            if self.advised and rng.random() < self.advised:
                notes, action = self._advice(env, roles, possible, action, rng)
            slip, meant = _any_command(env, rng), True
            other = rng.choice([slip, env.command(rng.choice(env.errands() or [env.errand()]))])
            if rng.random() < self.comparisons and other != action:
                first_shown, second_shown = rng.sample([action, other], 2)
                question = self.protocol.phrases.judge.format(first=first_shown, second=second_shown)
                taught.append(Drill(f"{shown}\n{question}", notes, "", "", thought, action))
            elif rng.random() < self.slips:
                action, meant = slip, False
            else:
                taught.append(Drill(shown, notes, *latest, thought, action))
            observation, _, ended, _, info = env.step(action)
            latest = (action if meant else "", observation)
            acted.append((action, observation))
            if ended:
                break
        return taught

    def _advice(
        self, env: Any, roles: dict[str, str], possible: list[str], action: str, rng: random.Random
    ) -> tuple[str, str]:
        """Some skills, and the action of a policy that follows them where it can, now and then not."""
        classes = {one: action_class(one, roles) for one in possible}
        kinds = sorted(set(classes.values()))
        some = rng.sample(kinds, min(len(kinds), rng.randint(0, 2)))
        some += [action_class(_any_command(env, rng), roles) for _ in range(rng.randint(0 if some else 1, 4))]
        phrase, listed = self.protocol.phrases.skill, []
        words: dict[str, str] = {}  # of possible commands that advice is about
        for kind in dict.fromkeys(some):
            word, covered = rng.choice((TRY, AVOID)), [one for one in possible if classes[one] == kind]
            if covered and rng.random() < 0.5:  # a single command, so that following is learnt as saying what is said
                covered = [rng.choice(covered)]
            words |= dict.fromkeys(covered, word)
            text = covered[0] if len(covered) == 1 else fill(kind, roles)
            listed.append(phrase.format(action=f"{word} {text}"))
        rng.shuffle(listed)
        notes = self.protocol.phrases.skills.format(skills=" ".join(listed))
        if rng.random() < self.obedience:
            wanted = [one for one in possible if words.get(one) == TRY]
            allowed = [one for one in possible if words.get(one) != AVOID]
            if wanted:
                action = rng.choice(wanted)
            elif action not in allowed and allowed:
                action = rng.choice(allowed)
        return notes, action

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
