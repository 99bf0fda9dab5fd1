"""``python -m tests.resume_worker FOLDER STEP``: trains with checkpoints, hangs after ``STEP`` steps to be killed."""

from __future__ import annotations

import sys
import time
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from datamodules import RolloutDataModule
from tests.conftest import small_data
from tests.recording import Recorder, quiet_trainer, recorder

SETTINGS: dict[str, Any] = {"kl_coef": 0.05, "learning_rate": 5e-4, "schedule": "linear"}


def data(kind: type[RolloutDataModule] = RolloutDataModule) -> RolloutDataModule:
    return small_data(kind, environment_args={"actions": 2, "steps": 1, "clues": 8}, max_turns=2, minibatches=3)


class Hang(pl.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Recorder, *_: Any) -> None:  # type: ignore[override]
        print(trainer.global_step, repr(pl_module.steps[-1]["train/loss"]), flush=True)
        if trainer.global_step == self.step:
            time.sleep(600)


def main(folder: str, step: int) -> None:
    torch.set_num_threads(1)
    saving = ModelCheckpoint(folder, every_n_train_steps=4, save_top_k=-1)
    fit = quiet_trainer(max_epochs=4, callbacks=[Hang(step), saving], enable_checkpointing=True)
    fit.fit(recorder(**SETTINGS), datamodule=data())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
