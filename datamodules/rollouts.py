"""Tasks in, rollout rows out: the DataModule that all policies share."""

from __future__ import annotations

import difflib
import importlib
from collections import UserList
from collections.abc import Sequence
from typing import Any

import gymnasium
import lightning.pytorch as pl
import torch
from torch import Tensor

import datamodules.environments  # noqa: F401 - registers zoo/*
from datamodules.buffer import RolloutBuffer
from zoo.errors import ConfigError
from zoo.rollout.context import AppendOnly, ContextManager
from zoo.rollout.protocol import Protocol, WordProtocol
from zoo.rollout.trajectory import Job, Split, Task

_SPLIT_OFFSET: dict[Split, int] = {"train": 0, "val": 1, "test": 2}


class TaskBatches(UserList[list[Task]]):
    """Batches of tasks to be evaluated; a plain list would be taken for several dataloaders."""


class RolloutDataModule(pl.LightningDataModule):
    """A world, its tasks, and the buffer between sampling and learning.

    Training tasks are a fixed pool walked in a seeded order, so every arm of a comparison sees the same tasks in the same
    iterations and a resumed run goes on where it stopped. Nothing about the order is state: it follows from the iteration.

    Args:
        environment: a gymnasium id, e.g. ``zoo/ClueLock-v0``, or ``module:id`` where a module must be imported to register it;
            its observations and actions are text.
        environment_args: arguments of the environment.
        protocol: how text becomes tokens and back; word level if absent.
        context: what the policy still sees of an episode; append-only if absent.
        max_turns: turns after which an episode ends as ``max_turns``.
        train_tasks: size of the pool of training tasks.
        val_tasks: validation tasks.
        test_tasks: test tasks.
        tasks_per_iteration: groups sampled per iteration, over all ranks.
        group_size: episodes per group.
        minibatches: optimiser steps per pass over an iteration's rows.
        epochs: passes over an iteration's rows.
        micro_batch_tokens: rows x longest row that one forward pass of training may hold.
        concurrent_episodes: episodes played at a time; the next ones begin as others end, so that memory does not grow with
            the number of episodes.
        episode_budget: training stops after the iteration in which this many episodes, probes included, were played.
        seed: of tasks and of sampling noise; follows ``seed_everything`` if absent.
    """

    def __init__(
        self,
        environment: str = "zoo/ClueLock-v0",
        environment_args: dict[str, Any] | None = None,
        protocol: Protocol | None = None,
        context: ContextManager | None = None,
        max_turns: int = 16,
        train_tasks: int = 1024,
        val_tasks: int = 200,
        test_tasks: int = 1000,
        tasks_per_iteration: int = 16,
        group_size: int = 8,
        minibatches: int = 2,
        epochs: int = 1,
        micro_batch_tokens: int = 16384,
        concurrent_episodes: int = 256,
        episode_budget: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        seed = torch.initial_seed() % 2**31 if seed is None else seed
        sizes = {"max_turns": max_turns, "train_tasks": train_tasks, "val_tasks": val_tasks, "test_tasks": test_tasks}
        sizes |= {"tasks_per_iteration": tasks_per_iteration, "group_size": group_size}
        sizes |= {"concurrent_episodes": concurrent_episodes}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"data.{name} must be at least 1, not {value}")
        if module := environment.rpartition(":")[0]:
            importlib.import_module(module)
        if environment.rpartition(":")[2] not in gymnasium.registry:
            known = sorted(name for name in gymnasium.registry if name.startswith("zoo/"))
            near = difflib.get_close_matches(environment, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the zoo has {', '.join(known)}"
            raise ValueError(f"data.environment: no gymnasium environment {environment!r}: {hint}")
        self.environment, self.environment_args = environment, environment_args or {}
        self.protocol, self.context = protocol or WordProtocol(), context or AppendOnly()
        self.max_turns, self.concurrent_episodes = max_turns, concurrent_episodes
        self.episode_budget, self.seed = episode_budget, seed
        self.sizes: dict[Split, int] = {"train": train_tasks, "val": val_tasks, "test": test_tasks}
        self.tasks_per_iteration, self.group_size = tasks_per_iteration, group_size
        self.buffer = RolloutBuffer(minibatches, epochs, micro_batch_tokens, seed)
        self._lap: tuple[int, Tensor] | None = None
        self._environments: list[gymnasium.Env[str, str]] = []

    def setup(self, stage: str) -> None:
        if self.trainer is not None:
            self.buffer.rank, self.buffer.world_size = self.trainer.global_rank, self.trainer.world_size

    def environments(self, count: int) -> Sequence[gymnasium.Env[str, str]]:
        """``count`` environments, kept for the next call.

        Raises:
            ConfigError: the environment does not take its arguments.
        """
        while len(self._environments) < count:
            try:
                made = gymnasium.make(self.environment, disable_env_checker=True, **self.environment_args)
            except ConfigError:
                raise
            except (TypeError, ValueError) as error:  # an argument it does not have, or does not take
                raise ConfigError(f"data.environment_args: {error}") from error
            self._environments.append(made.unwrapped)
        return self._environments[:count]

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The words a word-level policy for this world needs.

        Raises:
            ConfigError: the environment does not say which words it uses.
        """
        words = getattr(self.environments(1)[0], "vocabulary", None)
        if words is None:
            fix = "add this attribute, or start from weights whose tokenizer knows any text"
            raise ConfigError(f"{self.environment} has no `vocabulary`, which word-level policies need: {fix}")
        return tuple(dict.fromkeys([*self.protocol.words, *self.context.words(self.protocol), *words]))

    def task_info(self, task: Task) -> dict[str, Any]:
        """What the environment tells at the start of a task."""
        return self.environments(1)[0].reset(seed=task.seed, options={"split": task.split, **task.options})[1]

    def task(self, split: Split, index: int) -> Task:
        return Task((3 * self.seed + _SPLIT_OFFSET[split]) * 1_000_003 + index, split)

    def tasks(self, split: Split) -> list[Task]:
        """All tasks of a split, in order."""
        return [self.task(split, index) for index in range(self.sizes[split])]

    def iteration_jobs(self, iteration: int) -> list[Job]:
        """The episodes of a training iteration before any is replaced: groups of ``group_size``, group by group."""
        drawn: list[Task] = []
        for place in range(iteration * self.tasks_per_iteration, (iteration + 1) * self.tasks_per_iteration):
            lap, index = divmod(place, self.sizes["train"])
            drawn.append(self.task("train", int(self._order(lap)[index])))
        return [Job(task, group) for group, task in enumerate(drawn) for _ in range(self.group_size)]

    def _order(self, lap: int) -> Tensor:
        """The order in which the ``lap``-th walk through the training tasks takes them."""
        if self._lap is None or self._lap[0] != lap:
            generator = torch.Generator().manual_seed(hash((self.seed, lap)) % 2**63)
            self._lap = (lap, torch.randperm(self.sizes["train"], generator=generator))
        return self._lap[1]

    def train_dataloader(self) -> RolloutBuffer:
        return self.buffer

    def val_dataloader(self) -> TaskBatches:
        return self._evaluation("val")

    def test_dataloader(self) -> TaskBatches:
        return self._evaluation("test")

    def predict_dataloader(self) -> TaskBatches:
        return self._evaluation("test")

    def _evaluation(self, split: Split) -> TaskBatches:
        """This rank's tasks in batches; every rank gets equally many batches, the last ones may be empty."""
        tasks, world, rank = self.tasks(split), self.buffer.world_size, self.buffer.rank
        share, size = -(-len(tasks) // world), self.concurrent_episodes
        mine = tasks[rank * share : (rank + 1) * share]
        return TaskBatches([mine[start : start + size] for start in range(0, share, size)])

    def state_dict(self) -> dict[str, Any]:
        return {"buffer": self.buffer.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.buffer.load_state_dict(state_dict["buffer"])
