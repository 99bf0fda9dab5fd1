"""Demonstrations of a world's known solutions, as training rows."""

from __future__ import annotations

import random
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from datamodules.rollouts import RolloutDataModule
from zoo.errors import ConfigError
from zoo.rollout.trajectory import Job, Row, Segment


class DemonstrationDataModule(RolloutDataModule):
    """Plays the known actions of training tasks and hands them out as rows; evaluation is by rollout, as everywhere.

    Args:
        guided_share: share of demonstrations that show some of their actions as guidance in the prompt, so that a
            policy learns to follow guidance.
        hint_noise: share of the shown actions that are replaced by random ones, so that it follows, but not blindly.
        **kwargs: of :class:`datamodules.RolloutDataModule`; an iteration has ``tasks_per_iteration`` demonstrations.
    """

    def __init__(self, guided_share: float = 0.0, hint_noise: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name, value in {"guided_share": guided_share, "hint_noise": hint_noise}.items():
            if not 0 <= value <= 1:
                raise ValueError(f"data.{name} is a share between 0 and 1, not {value}")
        self.guided_share, self.hint_noise = guided_share, hint_noise
        self.group_size = 1

    def demonstrations(self, iteration: int, tokenizer: PreTrainedTokenizerBase) -> list[Row]:
        """The rows of one iteration.

        Raises:
            ConfigError: a training task whose solution the environment does not tell, or that does not fit the context.
        """
        rows = []
        for place, job in enumerate(self.iteration_jobs(iteration)):
            rng = random.Random(f"{self.seed} {iteration} {place}")
            segment = self._demonstrate(job, tokenizer, rng)
            mask = torch.tensor(segment.mask)
            rows.append(
                Row(
                    ids=torch.tensor(segment.ids),
                    mask=mask,
                    old_logprobs=torch.zeros(len(mask)),
                    advantages=mask.float(),
                    trajectory=torch.tensor(place),
                )
            )
        return rows

    def _demonstrate(self, job: Job, tokenizer: PreTrainedTokenizerBase, rng: random.Random) -> Segment:
        env = self.environments(1)[0]
        observation, info = env.reset(seed=job.task.seed, options={"split": job.task.split, **job.task.options})
        actions = info.get("action_data")
        if not actions:
            raise ConfigError(f"{self.environment} tells no action_data for {job.task}: nothing to demonstrate")
        segment = Segment.begin(self.protocol.prompt(tokenizer, observation, info, self._notes(actions, info, rng)))
        for index, action in enumerate(actions):
            ids = self.protocol.action(tokenizer, action, info)
            segment.write(ids, [0.0] * len(ids))
            observation, _, terminated, truncated, info = env.step(action)
            if terminated or truncated or index == len(actions) - 1:
                return segment
            if not self.context.extend(segment, self.protocol.observation(tokenizer, observation, info)):
                raise ConfigError(f"{job.task} does not fit into context.max_tokens={self.context.max_tokens}")
        return segment

    def _notes(self, actions: list[str], info: dict[str, Any], rng: random.Random) -> str:
        if rng.random() >= self.guided_share:
            return ""
        plan = list(enumerate(actions, 1))[: rng.randint(1, len(actions))]
        rng.shuffle(plan)  # so that guidance is followed by its numbers, not by its place
        admissible = info.get("admissible_actions") or actions
        return self.protocol.guidance(
            [(number, rng.choice(admissible) if rng.random() < self.hint_noise else action) for number, action in plan]
        )
