"""Imitation of demonstrations: warm starts, the SFT baseline, and the imitation stage of ACT."""

from __future__ import annotations

import lightning.pytorch as pl
from torch import Tensor

from zoo.agent import AgentModule, Measures, over
from zoo.errors import ConfigError
from zoo.registry import register_model


class DemonstrationSampler(pl.Callback):
    """Fills the buffer with an iteration's demonstrations, where online methods play episodes."""

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: AgentModule) -> None:  # type: ignore[override]
        data = trainer.datamodule  # type: ignore[attr-defined]
        if not hasattr(data, "demonstrations"):
            known = "a DemonstrationDataModule or an ActionPairDataModule"
            raise ConfigError(f"ImitationPolicy learns from {known}, not {type(data).__name__}")
        data.buffer.fill(data.demonstrations(trainer.current_epoch, pl_module.policy.tokenizer))


@register_model
class ImitationPolicy(AgentModule):
    """Maximum likelihood of the demonstrated actions: ``-log pi(action | what came before)``, a mean over their tokens."""

    def configure_callbacks(self) -> list[pl.Callback]:
        return [DemonstrationSampler()]

    def objective(self, batch: dict[str, Tensor]) -> tuple[Tensor, Measures]:
        logprobs = self.policy.logprobs(batch["ids"], wanted=batch["mask"])
        return self.aggregate(-logprobs, batch), {"loss": over(-logprobs.detach(), batch["mask"])}
