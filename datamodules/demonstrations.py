"""Demonstrations of a world's known solutions, as training rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from datamodules.rollouts import RolloutDataModule
from zoo.errors import ConfigError
from zoo.rollout.context import ContextManager
from zoo.rollout.loop import Episode, Stage, perform
from zoo.rollout.trajectory import Job, Row, Trajectory

_STARTS = 64  # tasks that wandering takes its actions from


class DemonstrationDataModule(RolloutDataModule):
    """Plays training tasks by script and hands the episodes out as rows; evaluation is by rollout, as everywhere.

    A world that has ``script(view, rng)`` is played by it: an expert that knows only the text in view, so it can be played under
    any context manager; ``note(observation)`` and ``digest(view)`` then write findings and summaries, and a selection is
    right by ``selection_skill`` and otherwise drawn. Other worlds tell their solution as ``info["action_data"]``.

    Args:
        guided_share: share of demonstrations that show some of their actions as guidance in the prompt, so that a
            policy learns to follow guidance.
        hint_noise: share of the shown actions that are replaced by random ones, so that it follows, but not blindly.
        wander: turns that guidance does not show are played by any action that some task starts with, not by the solution:
            the policy learns the protocol and to follow guidance, and nothing of the world.
        contexts: context managers that take turns, so that one policy learns to live under any; ``context`` if absent.
        selection_skill: how often a demonstrated selection names the records that the world says are needed.
        **kwargs: of :class:`datamodules.RolloutDataModule`; an iteration has ``tasks_per_iteration`` demonstrations.
    """

    def __init__(
        self,
        guided_share: float = 0.0,
        hint_noise: float = 0.0,
        wander: bool = False,
        contexts: list[ContextManager] | None = None,
        selection_skill: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        shares = {"guided_share": guided_share, "hint_noise": hint_noise, "selection_skill": selection_skill}
        for name, value in shares.items():
            if not 0 <= value <= 1:
                raise ConfigError(f"data.{name} is a share between 0 and 1, not {value}")
        self.guided_share, self.hint_noise, self.selection_skill = guided_share, hint_noise, selection_skill
        self.wander = wander
        self.contexts: Sequence[ContextManager] = contexts or [self.context]
        self.group_size = 1

    @property
    def vocabulary(self) -> tuple[str, ...]:
        more = (word for context in self.contexts for word in context.words(self.protocol))
        return tuple(dict.fromkeys([*super().vocabulary, *more]))

    @cached_property
    def first_choices(self) -> list[list[str]]:
        """What may be done at the start of some training tasks."""
        tasks = (self.task("train", index) for index in range(min(_STARTS, self.sizes["train"])))
        choices: list[list[str]] = [self.task_info(task).get("admissible_actions", []) for task in tasks]
        if not all(choices):
            raise ConfigError(
                f"{self.environment} tells no admissible_actions: nothing to wander by; data.wander must be false"
            )
        return choices

    def demonstrations(self, iteration: int, tokenizer: PreTrainedTokenizerBase) -> list[Row]:
        """The rows of one iteration.

        Raises:
            ConfigError: a training task whose solution the environment does not tell, or that does not fit the context.
        """
        jobs = [Job(job.task, place) for place, job in enumerate(self.iteration_jobs(iteration))]
        scripts = {job.group: _Script(self, job, random.Random(f"{self.seed} {iteration} {job.group}")) for job in jobs}
        rows: list[Row] = []
        for index, context in enumerate(self.contexts):
            stage = Stage(self.protocol, context, self.max_turns, self.environments)
            played = perform(
                lambda episode: scripts[episode.job.group].say(episode),
                tokenizer,
                stage,
                jobs[index :: len(self.contexts)],
                lambda job, turns, info: scripts[job.group].notes,
            )
            for trajectory in played:
                if trajectory.finish == "context_full" and not (scripts[trajectory.job.group].scripted or self.wander):
                    limit = f"context.max_tokens={context.max_tokens}"
                    raise ConfigError(f"{trajectory.job.task} does not fit into {limit}")
            rows += demonstrated(played)
        return rows


def demonstrated(played: Sequence[Trajectory]) -> list[Row]:
    """Performed episodes as rows whose every written token is to be imitated."""
    rows: list[Row] = []
    for trajectory in played:
        for segment in trajectory.segments:
            mask = torch.tensor(segment.mask)
            row = Row(
                ids=torch.tensor(segment.ids),
                mask=mask,
                old_logprobs=torch.zeros(len(mask)),
                advantages=mask.float(),
                trajectory=torch.tensor(trajectory.job.group),
            )
            rows.append(row)
    return rows


class _Script:
    """What one demonstration says."""

    def __init__(self, data: DemonstrationDataModule, job: Job, rng: random.Random) -> None:
        self.data, self.rng, self.notes = data, rng, ""
        self.scripted = hasattr(data.environments(1)[0], "script")
        if self.scripted:
            return
        info = data.task_info(job.task)
        self.actions = info.get("action_data") or []
        if not self.actions:
            raise ConfigError(f"{data.environment} tells no action_data for {job.task}: nothing to demonstrate")
        self.elsewhere = data.first_choices if data.wander else []  # before the episode, whose world this would reset
        self.shown = 0 if data.wander else len(self.actions)
        if rng.random() < data.guided_share:
            plan = list(enumerate(self.actions, 1))[: rng.randint(1, len(self.actions))]
            self.shown = len(plan) if data.wander else len(self.actions)
            rng.shuffle(plan)  # so that guidance is followed by its numbers, not by its place
            admissible = info.get("admissible_actions") or self.actions
            self.notes = data.protocol.guidance(
                [(turn, rng.choice(admissible) if rng.random() < data.hint_noise else action) for turn, action in plan]
            )

    def say(self, episode: Episode) -> tuple[str, str] | None:
        """What the next reply says to the memory, and the action."""
        view, env = episode.seen, episode.env
        if not self.scripted:
            return self._next(len(episode.turns))
        seen = view.opening.decode(view.segment.ids)
        if view.wants == "selection":
            return self._selection(episode), ""
        if view.wants == "summary":
            return f"<summary> {self._digest(env.digest(seen), view.room() - 3)} </summary>", ""  # type: ignore[attr-defined]
        finding = f"<finding> {env.note(episode.observation)} </finding>" if view.wants == "finding" else ""  # type: ignore[attr-defined]
        return finding, env.script(seen, self.rng)  # type: ignore[attr-defined]

    def _next(self, turn: int) -> tuple[str, str] | None:
        if turn < self.shown:
            return "", self.actions[turn]
        return ("", self.rng.choice(self.rng.choice(self.elsewhere))) if self.elsewhere else None

    def _selection(self, episode: Episode) -> str:
        """A selection: the needed records or random ones, by ``selection_skill``."""
        view: Any = episode.seen
        gold = episode.env.gold() if self.rng.random() < self.data.selection_skill else ()  # type: ignore[attr-defined]
        found = {record.action: record for record in view.archive}
        chosen = [found[action] for action in gold if action in found]
        if not chosen:
            chosen = self.rng.sample(view.archive, min(len(view.archive), self.rng.randint(1, view.manager.choose)))
            chosen.sort(key=lambda record: record.turn)
        phrases = view.opening.protocol.phrases
        lines = " ".join(phrases.name(record) for record in chosen[: view.manager.choose])
        return f"<selection> {lines} </selection>"

    def _digest(self, facts: list[str], limit: int) -> str:
        """As many of the facts as fit into ``limit`` words, random ones in their order."""
        kept, room = set(), limit
        for fact in self.rng.sample(facts, len(facts)):
            if (size := len(fact.split())) <= room:
                kept.add(fact)
                room -= size
        return " ".join(fact for fact in facts if fact in kept)
