"""Small policies and worlds shared by the tests."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from datamodules import RolloutDataModule
from zoo.policy import CausalPolicy, word_policy

ARCHITECTURE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "initializer_range": 0.3,  # far from uniform, so that a wrong context shows in the log-probabilities
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def architecture() -> dict[str, Any]:
    return dict(ARCHITECTURE)


@pytest.fixture
def data() -> RolloutDataModule:
    """A lock short enough for a random policy to open sometimes."""
    return small_data()


def small_data(kind: type[RolloutDataModule] = RolloutDataModule, **changes: Any) -> RolloutDataModule:
    settings: dict[str, Any] = {
        "environment_args": {"actions": 2, "steps": 2, "clues": 8},
        "tasks_per_iteration": 4,
        "group_size": 4,
        "max_turns": 4,
        "val_tasks": 8,
        "test_tasks": 12,
        "seed": 0,
    }
    return kind(**{**settings, **changes})


@pytest.fixture
def policy(data: RolloutDataModule) -> CausalPolicy:
    return word_policy(ARCHITECTURE, data.vocabulary).eval()


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
