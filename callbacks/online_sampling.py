"""Fills the rollout buffer at the start of every training epoch: one epoch is one iteration of online RL."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from datamodules.buffer import collate
from datamodules.rollouts import RolloutDataModule
from zoo.errors import ConfigError
from zoo.rollout.trajectory import Job, Row, Trajectory

if TYPE_CHECKING:
    from zoo.agent import AgentModule, Facts


class OnlineSampler(pl.Callback):
    """Plays the iteration's episodes with the current policy and leaves their training rows in the buffer.

    Ranks share the groups; afterwards every rank holds all rows. The noise of an iteration is seeded by the datamodule's seed,
    the iteration and the rank, so nothing but the counters below needs to be kept in a checkpoint.

    Attributes:
        episodes: played so far, over all ranks, those that were thrown away included.
        generated_tokens: written by the policy in them.
    """

    def __init__(self) -> None:
        self.episodes = 0
        self.generated_tokens = 0
        self._played: list[Trajectory] = []

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        check_can_learn(trainer, pl_module)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: AgentModule) -> None:  # type: ignore[override]
        started, data = time.perf_counter(), _datamodule(trainer)
        rank, world_size = trainer.global_rank, trainer.world_size
        seed = _noise_seed(data.seed, trainer.current_epoch, rank)
        generator = torch.Generator(pl_module.device).manual_seed(seed)
        jobs = [job for job in data.iteration_jobs(trainer.current_epoch) if job.group % world_size == rank]
        groups, facts = self.collect(pl_module, jobs, generator)
        if self._played and not any(trajectory.written or trajectory.reward is None for trajectory in self._played):
            raise ConfigError("no episode had room for a reply: raise data.context.max_tokens")
        rows, credited = pl_module.credit(groups)
        facts = {**facts, **credited, **_episode_facts(groups)}
        facts["played"], facts["written"] = [float(len(self._played))], [float(sum(t.written for t in self._played))]
        self._played = []
        rows, facts = _gather(rows, facts, world_size)
        if pl_module.hparams.kl_coef:
            self._add_reference(pl_module, rows, data.buffer.micro_batch_tokens)
        data.buffer.fill(rows)
        played, written = sum(facts.pop("played")), sum(facts.pop("written"))
        self.episodes += int(played)
        self.generated_tokens += int(written)
        self._log(pl_module, facts, len(rows), written / (time.perf_counter() - started))

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        budget = _datamodule(trainer).episode_budget
        if budget is not None and self.episodes >= budget:
            trainer.should_stop = True

    def collect(
        self, module: AgentModule, jobs: Sequence[Job], generator: torch.Generator
    ) -> tuple[list[list[Trajectory]], Facts]:
        """Play the jobs and return the groups to be credited, with numbers worth logging."""
        return by_group(self.play(module, jobs, generator)), defaultdict(list)

    def play(self, module: AgentModule, jobs: Sequence[Job], generator: torch.Generator) -> list[Trajectory]:
        """Play the jobs and count them."""
        trajectories = module.play(jobs, module.hparams.temperature, generator)
        self._played += trajectories
        return trajectories

    def _add_reference(self, module: AgentModule, rows: list[Row], budget: int) -> None:
        for part, batch in collated(rows, budget, module.device):
            for row, logprobs in zip(part, module.reference_logprobs(batch).cpu(), strict=True):
                row["reference_logprobs"] = logprobs[: len(row["ids"])].clone()  # type: ignore[typeddict-unknown-key]

    def _log(self, module: AgentModule, facts: Facts, rows: int, speed: float) -> None:
        means = {f"train/{name}": sum(values) / len(values) for name, values in facts.items() if values}
        shown: dict[str, float] = {name: means.pop(name) for name in ("train/success", "train/reward") if name in means}
        shown |= {"tokens/s": speed}
        means |= {"train/rows": rows, "train/episodes": self.episodes, "train/generated_tokens": self.generated_tokens}
        module.log_dict(shown, on_step=False, on_epoch=True, prog_bar=True)
        module.log_dict({name: float(value) for name, value in means.items()}, on_step=False, on_epoch=True)

    def state_dict(self) -> dict[str, Any]:
        return {"episodes": self.episodes, "generated_tokens": self.generated_tokens}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.episodes, self.generated_tokens = state_dict["episodes"], state_dict["generated_tokens"]


def collated(rows: list[Row], budget: int, device: torch.device) -> Iterator[tuple[list[Row], dict[str, Tensor]]]:
    """Parts of the rows that fit the token budget, in their order, each with its batch."""
    width = max((len(row["ids"]) for row in rows), default=1)
    for start in range(0, len(rows), max(1, budget // width)):
        part = rows[start : start + max(1, budget // width)]
        written = {int(row["trajectory"]): 1 for row in part}  # no denominator is needed here
        yield part, {name: value.to(device) for name, value in collate(part, written).items()}


def by_group(trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """Trajectories of the same group together, in the order the groups first appear."""
    groups: dict[int, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        groups[trajectory.job.group].append(trajectory)
    return list(groups.values())


def check_can_learn(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    """Refuse a configuration under which no gradient can ever arise or would be wrong.

    Raises:
        ConfigError: names the key and the fix.
    """
    data = _datamodule(trainer)
    if data.group_size < 2:
        raise ConfigError("data.group_size=1: advantages compare episodes of a group, so take at least 2")
    if data.tasks_per_iteration < trainer.world_size:
        raise ConfigError(f"data.tasks_per_iteration={data.tasks_per_iteration} leaves ranks without work: raise it")
    if trainer.reload_dataloaders_every_n_epochs:  # type: ignore[attr-defined]
        raise ConfigError("trainer.reload_dataloaders_every_n_epochs: the buffer is refilled in place; leave it at 0")
    if module.hparams.get("temperature", 1.0) <= 0:
        raise ConfigError(
            "model.temperature=0: greedy episodes of a group are all equal, so take a temperature above 0"
        )


def _datamodule(trainer: pl.Trainer) -> RolloutDataModule:
    data = trainer.datamodule  # type: ignore[attr-defined]
    if not isinstance(data, RolloutDataModule):
        raise ConfigError(f"online sampling needs a RolloutDataModule, not {type(data).__name__}")
    return data


def _noise_seed(seed: int, iteration: int, rank: int) -> int:
    """A seed for one iteration on one rank, far from its neighbours'."""
    return random.Random(f"{seed} {iteration} {rank}").getrandbits(60)


def _episode_facts(groups: Sequence[Sequence[Trajectory]]) -> Facts:
    trajectories = [trajectory for group in groups for trajectory in group]
    scored = [trajectory for trajectory in trajectories if trajectory.reward is not None]
    facts: Facts = {
        "success": [float(trajectory.success) for trajectory in scored],
        "reward": [float(trajectory.reward or 0.0) for trajectory in scored],
        "turns": [float(len(trajectory.turns)) for trajectory in scored],
    }
    for reason in Counter(trajectory.finish for trajectory in trajectories):
        facts[f"finish_{reason}"] = [float(trajectory.finish == reason) for trajectory in trajectories]
    return facts


def _gather(rows: list[Row], facts: Facts, world_size: int) -> tuple[list[Row], Facts]:
    """All ranks' rows and facts, the same on every rank; trajectory numbers are made unique."""
    if world_size == 1:
        return rows, facts
    parts: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(parts, (rows, dict(facts)))
    merged: list[Row] = []
    joined: Facts = defaultdict(list)
    for rank, (part, numbers) in enumerate(parts):
        merged += [{**row, "trajectory": row["trajectory"] * world_size + rank} for row in part]  # type: ignore[typeddict-item]
        for name, values in numbers.items():
            joined[name] += values
    return merged, joined
