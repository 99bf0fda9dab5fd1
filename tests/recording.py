"""Modules that remember every optimiser step, and a trainer that keeps quiet: shared by the tests that fit."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch

from zoo.actguide.module import ACTGuidePolicy
from zoo.agent import AgentModule

START = "base.clue_lock"  # knows how to act, but not which action is right


class Recorder(AgentModule):
    """Keeps what each optimiser step measured, unrounded."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.steps: list[dict[str, float]] = []

    def log_dict(self, dictionary: Any, *args: Any, **kwargs: Any) -> None:
        if "train/loss" in dictionary:
            self.steps.append(dict(dictionary))
        super().log_dict(dictionary, *args, **kwargs)


class GuidedRecorder(Recorder, ACTGuidePolicy):
    """The same of ActGuide."""


def recorder(kind: type[Recorder] = Recorder, **changes: Any) -> Recorder:
    return kind(**{"weights": START, **changes})


def quiet_trainer(**changes: Any) -> pl.Trainer:
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "max_epochs": 2,
        "limit_val_batches": 0,
    }
    return pl.Trainer(**{**settings, **changes})


def weights(module: AgentModule) -> dict[str, torch.Tensor]:
    """A copy of the policy's tensors."""
    return {name: value.clone() for name, value in module.policy.state_dict().items()}


def same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
