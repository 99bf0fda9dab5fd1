"""What it costs that a run can be resumed: iterations with and without a checkpoint after each."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint

from benchmarks.speed.cases import grpo_step
from benchmarks.speed.worker import Step

PEER = "the same without checkpoints"
VARIANTS: dict[str, dict[str, Any]] = {"1M": {"size": "1M"}, "5M": {"size": "5M"}}


def ours(size: str) -> Step:
    return grpo_step.ours(size, callbacks=[ModelCheckpoint(every_n_epochs=1, save_on_train_epoch_end=True)])


def peer(size: str) -> Step:
    return grpo_step.ours(size)


def check(size: str) -> None:
    ours(size)()
