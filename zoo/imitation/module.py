"""Imitation of demonstrations: warm starts, the SFT baseline, and the imitation stage of ACT."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from torch import Tensor

from datamodules.action_pairs import ActionPairDataModule
from zoo.agent import AgentModule, Measures, over
from zoo.errors import ConfigError
from zoo.registry import register_model
from zoo.rollout.trajectory import Job


class DemonstrationSampler(pl.Callback):
    """Fills the buffer with an iteration's demonstrations, where online methods play episodes."""

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: AgentModule) -> None:  # type: ignore[override]
        data = trainer.datamodule  # type: ignore[attr-defined]
        if not hasattr(data, "demonstrations"):
            known = "a DemonstrationDataModule or an ActionPairDataModule"
            raise ConfigError(f"ImitationPolicy learns from {known}, not {type(data).__name__}")
        arguments: tuple[Any, ...] = (trainer.current_epoch, pl_module.policy.tokenizer)
        if pl_module.hparams.thoughts == "own":
            if not isinstance(data, ActionPairDataModule):
                raise ConfigError(f"model.thoughts=own needs an ActionPairDataModule, not {type(data).__name__}")
            arguments += (partial(_thoughts, pl_module, data, trainer.current_epoch),)
        data.buffer.fill(data.demonstrations(*arguments))


def _thoughts(module: AgentModule, data: ActionPairDataModule, iteration: int, jobs: Sequence[Job]) -> list[str]:
    """What the policy as it is thinks about each job."""
    seed = random.Random(f"{data.seed} {iteration} thoughts").getrandbits(60)
    generator = torch.Generator(module.device).manual_seed(seed)
    played = module.play(jobs, module.hparams.temperature, generator, data)
    return [data.protocol.thought(trajectory.turns[-1].reply) if trajectory.turns else "" for trajectory in played]


@register_model
class ImitationPolicy(AgentModule):
    """Maximum likelihood of the demonstrated actions: ``-log pi(action | what came before)``, a mean over their tokens.

    Args:
        thoughts: what stands between a state and the expert's action: ``none``, so that the policy learns to act at once; or what
            the policy itself thinks there (``own``), drawn anew each iteration and not trained (ACT dossier 1.8: the paper is
            silent).
        **kwargs: of :class:`zoo.agent.AgentModule`.
    """

    def __init__(self, thoughts: Literal["none", "own"] = "none", **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def configure_callbacks(self) -> list[pl.Callback]:
        return [DemonstrationSampler()]

    def objective(self, batch: dict[str, Tensor]) -> tuple[Tensor, Measures]:
        logprobs = self.policy.logprobs(batch["ids"], wanted=batch["mask"])
        return self.aggregate(-logprobs, batch), {"loss": over(-logprobs.detach(), batch["mask"])}
