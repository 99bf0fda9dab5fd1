"""DPO on ACT's pairs: the loss is TRL's, and what is preferred becomes likelier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor

from datamodules import ActionPairDataModule
from tests.act.conftest import FEW, WORLD
from tests.conftest import ARCHITECTURE, small_data
from zoo import PreferencePolicy
from zoo.errors import ConfigError
from zoo.rollout.protocol import WordProtocol

SHAPE = {**ARCHITECTURE, "max_position_embeddings": 512}


def preferred(pairs: str | None, **changes: Any) -> ActionPairDataModule:
    few = {"tasks_per_iteration": 6, "group_size": 1, "val_tasks": 1, "minibatches": 1}
    settings = {**WORLD, **few, "ask": "action", "trajectories": FEW, "protocol": WordProtocol(6, thoughts="free")}
    return ActionPairDataModule(**{**settings, "pairs": pairs, **changes})


def fitted(data: Any, epochs: int = 1, **settings: Any) -> PreferencePolicy:
    torch.manual_seed(0)
    module = PreferencePolicy(architecture=SHAPE, **settings)
    pl.Trainer(
        max_epochs=epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu"
    ).fit(module, datamodule=data)
    return module


def test_rows_hold_both_actions_and_what_the_start_thinks_of_them(pairs: str) -> None:
    data = preferred(pairs)
    module = fitted(data, learning_rate=0.0)
    tokenizer = module.policy.tokenizer
    for row, job in zip(data.buffer.rows, data.iteration_jobs(0), strict=True):
        decision = data.decisions["train"][job.task.seed]
        made: Any = row
        assert tokenizer.decode(made["ids"][made["mask"]]) == f"do {decision.expert} <end>"
        assert tokenizer.decode(made["rejected"][made["rejected_mask"]]) == f"do {decision.alternatives[0]} <end>"
        prompt = int(made["mask"].int().argmax())
        assert torch.equal(made["ids"][:prompt], made["rejected"][:prompt])
    loss = sum(float(module.objective(batch)[0]) for batch in data.buffer.minibatch(0))
    assert loss == pytest.approx(0.6931, abs=1e-3)  # the policy is the reference


def by_hand(policy: Tensor, reference: Tensor, beta: float) -> Tensor:
    """TRL's ``sigmoid`` loss on summed log-probabilities ``[2, pairs]``, chosen first."""
    ratios = policy - reference
    return -torch.nn.functional.logsigmoid(beta * (ratios[0] - ratios[1])).mean()


def test_the_loss_is_trls(pairs: str) -> None:
    """On log-probabilities that were scored one reply at a time."""
    data = preferred(pairs)
    module = fitted(data, epochs=2, learning_rate=1e-2, kl_coef=0.3)
    assert module.reference is not None
    rows: list[Any] = data.buffer.rows
    sums = []
    for policy in (module.policy, module.reference):
        replies = [
            [(row["ids"], row["mask"]) for row in rows],
            [(row["rejected"], row["rejected_mask"]) for row in rows],
        ]
        scored = [[(policy.logprobs(ids[None])[0] * mask).sum() for ids, mask in some] for some in replies]
        sums.append(torch.stack([torch.stack(some) for some in scored]))
    loss = sum(float(module.objective(batch)[0]) for batch in data.buffer.minibatch(0))
    assert loss == pytest.approx(float(by_hand(*sums, 0.3)), abs=1e-5)


def test_what_is_preferred_becomes_likelier(pairs: str) -> None:
    data = preferred(pairs)
    module = fitted(data, epochs=12, learning_rate=3e-3)
    measured = [module.objective(batch)[1]["preferred"] for batch in data.buffer.minibatch(0)]
    assert sum(float(total) for total, _ in measured) / sum(int(count) for _, count in measured) > 0.8


def test_what_cannot_work_is_refused(pairs: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.kl_coef is DPO's beta"):
        PreferencePolicy(architecture=SHAPE, kl_coef=0.0)
    with pytest.raises(ConfigError, match="learns from an ActionPairDataModule"):
        fitted(small_data())
    with pytest.raises(ConfigError, match="preferences need alternatives"):
        fitted(preferred(None))
