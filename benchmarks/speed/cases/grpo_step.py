"""A whole GRPO step of two trainers: 4 prompts of 64 tokens, 4 replies of up to 64 each, one update, all that is logged."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import lightning.pytorch as pl
import torch
from gymnasium import spaces

from benchmarks.speed.networks import network, passes
from benchmarks.speed.peers import trl_trainer
from benchmarks.speed.worker import Paced, Step
from datamodules.buffer import collate
from datamodules.rollouts import RolloutDataModule
from zoo.agent import AgentModule, Facts, Group
from zoo.rollout.context import AppendOnly
from zoo.rollout.protocol import WordProtocol
from zoo.rollout.trajectory import Row

PEER = "trl.GRPOTrainer (loss_type dapo)"
VARIANTS: dict[str, dict[str, Any]] = {size: {"size": size} for size in ("1M", "5M", "135M")}
PROMPTS, REPLIES, LENGTH = 4, 4, 64


class OneReply(gymnasium.Env[str, str]):
    """Shows 64 words; whatever is said ends the episode."""

    observation_space = action_space = spaces.Text(4096)
    vocabulary: ClassVar[tuple[str, ...]] = ()

    def __init__(self, words: int = 1021) -> None:
        self.words = words

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        draws = random.Random(seed)
        return " ".join(f"w{draws.randrange(self.words)}" for _ in range(LENGTH)), {"success": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", 0.0, True, False, {"success": True}


class RandomReward(AgentModule):
    """GRPO on rewards drawn at random, as an untrained policy never earns any."""

    def configure_model(self) -> None:
        """The network is given, and its words are those of the peer's."""

    def credit(self, groups: Sequence[Group]) -> tuple[list[Row], Facts]:
        for group in groups:
            for trajectory in group:
                trajectory.reward = random.random()
        return super().credit(groups)


class _Pause(pl.Callback):
    def __init__(self, pace: Paced) -> None:
        self.pace = pace

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.pace.pause()


def ours(size: str, prompts: int = PROMPTS, callbacks: Sequence[pl.Callback] = ()) -> Step:
    policy = network(size)
    gymnasium.register("bench/OneReply-v0", OneReply)
    module = RandomReward(architecture={"model_type": "llama"}, learning_rate=1e-5)
    module._set_policy(policy)
    data = RolloutDataModule(
        environment="bench/OneReply-v0",
        environment_args={"words": len(policy.tokenizer) - 3},
        protocol=WordProtocol(LENGTH),
        context=AppendOnly(4 * LENGTH),
        max_turns=1,
        train_tasks=100_000,
        tasks_per_iteration=prompts,
        group_size=REPLIES,
        minibatches=1,
    )

    def fit(pace: Paced) -> None:
        trainer = pl.Trainer(
            max_epochs=1_000_000,
            accelerator="cpu",
            default_root_dir=(folder := tempfile.mkdtemp()),
            logger=pl.loggers.CSVLogger(folder),
            enable_checkpointing=bool(callbacks),
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
            log_every_n_steps=1,
            callbacks=[_Pause(pace), *callbacks],
        )
        trainer.fit(module, data)

    return Paced(fit)


def peer(size: str) -> Step:
    from transformers import TrainerCallback

    def fit(pace: Paced) -> None:
        trainer = trl_trainer(network(size), tempfile.mkdtemp())

        class Pause(TrainerCallback):
            def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
                pace.pause()

        trainer.add_callback(Pause())
        trainer.train()

    return Paced(fit)


def check(size: str) -> None:
    """Equal loss and gradients on equal ids, advantages and behaviour log-probabilities."""
    from tests.test_against_trl import trl_inputs

    generator = torch.Generator().manual_seed(0)
    rows = []
    for index in range(8):
        ids = torch.randint(3, 1000, (40 + 2 * index,), generator=generator)
        mask = torch.arange(len(ids)) >= 16
        old = -7 * torch.rand(len(ids), generator=generator) * mask
        reward = torch.randn((), generator=generator)
        rows.append(Row(ids=ids, mask=mask, old_logprobs=old, advantages=mask * reward, trajectory=torch.tensor(index)))
    for row in rows:
        row["reference_logprobs"] = row["old_logprobs"]  # type: ignore[typeddict-unknown-key]
    module, twin = AgentModule(architecture={"model_type": "llama"}, dual_clip=None), network(size)
    module._set_policy(network(size))
    loss, _ = module.objective(collate(rows, {index: int(row["mask"].sum()) for index, row in enumerate(rows)}))
    loss.backward()
    trainer = trl_trainer(twin, tempfile.mkdtemp())
    theirs = trainer._compute_loss(twin.model.eval(), trl_inputs(rows))
    theirs.backward()
    assert abs(float(loss.detach()) - float(theirs.detach())) < 1e-5, (float(loss), float(theirs))
    for mine, its in zip(module.policy.parameters(), twin.parameters(), strict=True):
        assert mine.grad is not None and its.grad is not None
        assert torch.allclose(mine.grad, its.grad, atol=1e-5, rtol=1e-3), float((mine.grad - its.grad).abs().max())


def flops(size: str) -> float:
    """Every distinct token once: prompts, replies, their scores; the update at three times the forward pass."""
    policy = network(size)
    prompts = passes(policy, [LENGTH] * PROMPTS, 0)
    replies = passes(policy, [2 * LENGTH] * PROMPTS * REPLIES, PROMPTS * REPLIES * LENGTH, LENGTH)
    return (1 + 3) * (prompts + replies)
