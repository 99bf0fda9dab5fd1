"""Imitation: the policy's own thoughts may stand before what is imitated."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
import torch

from datamodules import ActionPairDataModule, DemonstrationDataModule
from tests.act.conftest import FEW, WORLD
from tests.conftest import ARCHITECTURE, small_data
from zoo import ImitationPolicy
from zoo.errors import ConfigError
from zoo.rollout.protocol import WordProtocol


def fitted(data: pl.LightningDataModule, thoughts: str) -> ImitationPolicy:
    torch.manual_seed(0)
    module = ImitationPolicy(architecture={**ARCHITECTURE, "max_position_embeddings": 512}, thoughts=thoughts)  # type: ignore[arg-type]
    pl.Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu"
    ).fit(module, datamodule=data)
    return module


def states() -> ActionPairDataModule:
    protocol = WordProtocol(6, thoughts="free")
    few = {"tasks_per_iteration": 4, "group_size": 1, "val_tasks": 1}
    return ActionPairDataModule(**WORLD, **few, ask="action", trajectories=FEW, protocol=protocol)  # type: ignore[arg-type]


def test_own_thoughts_are_drawn_anew_each_iteration_and_the_same_in_a_repetition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A policy that knows nothing hardly ever says `do`; all that it says is a thought here.
    monkeypatch.setattr(WordProtocol, "thought", lambda self, reply: reply.replace("<end>", "").replace("do", ""))
    shown = []
    for _ in range(2):
        data = states()
        fitted(data, "own")
        shown.append([row["ids"] for row in data.buffer.rows])
        assert all(int(row["mask"].sum()) < 7 for row in data.buffer.rows)
    assert all(torch.equal(one, other) for one, other in zip(*shown, strict=True))
    plain = states()
    fitted(plain, "none")
    assert sum(map(len, shown[0])) > sum(len(row["ids"]) for row in plain.buffer.rows)


def test_own_thoughts_need_states() -> None:
    with pytest.raises(ConfigError, match=r"model.thoughts=own needs an ActionPairDataModule"):
        fitted(small_data(DemonstrationDataModule), "own")
