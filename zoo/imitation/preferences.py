"""Direct preference optimisation (Rafailov et al., arXiv 2305.18290): a control of ACT on the same pairs."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from callbacks.online_sampling import collated
from datamodules.action_pairs import ActionPairDataModule
from zoo import objectives
from zoo.agent import AgentModule, Measures
from zoo.errors import ConfigError
from zoo.registry import register_model


class PreferenceSampler(pl.Callback):
    """Fills the buffer with an iteration's pairs and what the policy at the start thinks of them."""

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: PreferencePolicy) -> None:  # type: ignore[override]
        data = trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, ActionPairDataModule):
            raise ConfigError(f"PreferencePolicy learns from an ActionPairDataModule, not {type(data).__name__}")
        rows: list[Any] = list(data.preferences(trainer.current_epoch, pl_module.policy.tokenizer))
        for part, batch in collated(rows, data.buffer.micro_batch_tokens, pl_module.device):
            chosen, rejected = pl_module.totals(batch, reference=True)
            for row, one, other in zip(part, chosen.cpu(), rejected.cpu(), strict=True):
                row["reference_margin"] = one - other  # type: ignore[typeddict-unknown-key]
        data.buffer.fill(rows)


@register_model
class PreferencePolicy(AgentModule):
    """DPO between the expert's action and the initial policy's alternative at an expert's states.

    ``kl_coef`` is DPO's beta and must be above 0; settings of sampling play no part.
    """

    def __init__(self, kl_coef: float = 0.1, **kwargs: Any) -> None:
        super().__init__(kl_coef=kl_coef, **kwargs)
        if kl_coef == 0:
            raise ConfigError("model.kl_coef is DPO's beta, so it must be above 0")

    def configure_callbacks(self) -> list[pl.Callback]:
        return [PreferenceSampler()]

    def totals(self, batch: dict[str, Tensor], reference: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the chosen and the rejected replies, ``[pairs]`` each."""
        ids, mask = (torch.cat([batch[a], batch[b]]) for a, b in (("ids", "rejected"), ("mask", "rejected_mask")))
        if reference:
            logprobs = self.reference_logprobs({"ids": ids, "mask": mask})
        else:
            logprobs = self.policy.logprobs(ids, self.hparams.temperature, mask)
        chosen, rejected = (logprobs * mask).sum(1).chunk(2)
        return chosen, rejected

    def objective(self, batch: dict[str, Tensor]) -> tuple[Tensor, Measures]:
        chosen, rejected = self.totals(batch)
        margin = chosen - rejected - batch["reference_margin"]
        loss = objectives.preference_loss(margin, self.hparams.kl_coef)
        pairs = torch.tensor(len(loss))
        return loss.sum() / batch["minibatch_sequences"], {
            "loss": (loss.detach().sum(), pairs),
            "preferred": ((margin.detach() > 0).sum(), pairs),
        }
