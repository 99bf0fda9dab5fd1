"""A resumed run is the same run, bit for bit, at any batch and after kill -9 (contract 7)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from callbacks.online_sampling import OnlineSampler
from datamodules import RolloutDataModule
from tests.recording import GuidedRecorder, Recorder, quiet_trainer, recorder, same_weights, weights
from tests.resume_worker import SETTINGS, data
from zoo.agent import AgentModule

ITERATIONS, MINIBATCHES = 4, 3


class Save(pl.Callback):
    """A checkpoint wherever one can be made: after every optimiser step, every validation and every epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        trainer.save_checkpoint(self.folder / f"step{trainer.global_step}.ckpt", weights_only=False)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            trainer.save_checkpoint(self.folder / f"validation{trainer.current_epoch}.ckpt", weights_only=False)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.save_checkpoint(self.folder / f"epoch{trainer.current_epoch}.ckpt", weights_only=False)


class Run:
    """A fit and what it left: steps, weights, counters, and checkpoints in ``folder``."""

    def __init__(
        self,
        kind: type[Recorder],
        folder: Path | None = None,
        resume: Path | None = None,
        world: type[RolloutDataModule] = RolloutDataModule,
        validate: bool = False,
    ) -> None:
        torch.manual_seed(0 if resume is None else 99)  # a resumed process starts elsewhere
        self.folder, self.validate = folder, validate
        self.module = recorder(kind, **SETTINGS)
        callbacks = [Save(folder)] if folder else []
        fit = quiet_trainer(max_epochs=ITERATIONS, callbacks=callbacks, limit_val_batches=int(validate))
        fit.fit(self.module, datamodule=data(world), ckpt_path=resume, weights_only=True if resume else None)
        self.steps, self.weights = self.module.steps, weights(self.module)
        (sampler,) = (callback for callback in fit.callbacks if isinstance(callback, OnlineSampler))  # type: ignore[attr-defined]
        self.counters = sampler.state_dict()
        self.metrics = {name: float(value) for name, value in fit.callback_metrics.items() if "tokens/s" not in name}


@pytest.fixture(scope="module", params=[(Recorder, False), (Recorder, True), (GuidedRecorder, False)], ids=str)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    torch.set_num_threads(1)
    kind, validate = request.param
    run = Run(kind, tmp_path_factory.mktemp("whole"), validate=validate)
    assert len(run.steps) == ITERATIONS * MINIBATCHES
    return run


CHECKPOINTS = {"step3": 3, "step4": 4, "step5": 5, "step6": 6, "step11": 11}  # and the optimiser steps taken before it
CHECKPOINTS |= {"validation0": 3, "validation1": 6, "epoch0": 3, "epoch1": 6}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_resume_is_bit_exact(whole: Run, name: str) -> None:
    done = CHECKPOINTS[name]
    if name.startswith("validation") and not whole.validate:
        pytest.skip("this run is not validated")
    assert whole.folder is not None
    rest = Run(type(whole.module), resume=whole.folder / f"{name}.ckpt", validate=whole.validate)
    assert rest.steps == whole.steps[done:]
    assert same_weights(rest.weights, whole.weights)
    assert rest.counters == whole.counters
    if done <= len(whole.steps) - MINIBATCHES:  # Lightning forgets the means of an interrupted iteration
        stale = set().union(*whole.steps[:-MINIBATCHES]).difference(*whole.steps[-MINIBATCHES:])
        assert {
            name: value for name, value in rest.metrics.items() if name not in stale
        }.items() <= whole.metrics.items()
    assert whole.module.reference is not None and rest.module.reference is not None
    assert same_weights(dict(rest.module.reference.state_dict()), dict(whole.module.reference.state_dict()))


def test_resume_after_kill(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.resume_worker", str(tmp_path), "8"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent) as worker:
        assert worker.stdout is not None
        losses = [float(worker.stdout.readline().split()[1]) for _ in range(8)]  # the second of three minibatches
        worker.kill()
    whole = Run(Recorder)
    assert losses == [step["train/loss"] for step in whole.steps[:8]]
    saved = sorted(tmp_path.glob("*.ckpt"))
    assert [path.name for path in saved] == ["epoch=1-step=4.ckpt"]  # the one of step 8 had not been written yet
    rest = Run(Recorder, resume=saved[0])
    assert rest.steps == whole.steps[4:]
    assert same_weights(rest.weights, whole.weights)


def test_a_checkpoint_of_another_class_is_refused_by_name(whole: Run) -> None:
    assert whole.folder is not None
    path = whole.folder / "epoch0.ckpt"
    made_by = type(whole.module).__name__
    with pytest.raises(ValueError, match=f"made by {made_by}, not by AgentModule"):
        quiet_trainer().fit(AgentModule(weights="base.clue_lock", kl_coef=0.1), datamodule=data(), ckpt_path=path)
    with pytest.raises(ValueError, match=f"made by {made_by}, not by AgentModule"):
        AgentModule.load_from_checkpoint(path, weights_only=True)


class RenamedData(RolloutDataModule):
    """Lightning keeps a datamodule's state under the name of its class."""


def test_a_renamed_datamodule_does_not_lose_the_buffer(whole: Run) -> None:
    assert whole.folder is not None
    rest = Run(type(whole.module), resume=whole.folder / "step4.ckpt", world=RenamedData)
    assert rest.steps == whole.steps[4:]
    assert same_weights(rest.weights, whole.weights)
