"""The expert's action cannot be told by its words alone, so that judging needs the state (ACT dossier, trap 7)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from datamodules.action_pairs import Decision, read_pairs
from zoo.commands import run

CONFIG = Path(__file__).parents[2] / "configs" / "act" / "household" / "1_predict_pairs.yaml"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Decision]:
    folder = tmp_path_factory.mktemp("pairs")
    trajectories = '{"train": 100, "val": 1, "test": 60}'
    run(
        ["predict", f"--config={CONFIG}", f"--trainer.default_root_dir={folder}", f"--data.trajectories={trajectories}"]
    )
    return read_pairs(folder / "pairs.jsonl")


def features(decisions: list[Decision]) -> torch.Tensor:
    """Words and pairs of words of the expert's action less those of the alternative, ``[decisions, 4096]``, hashed."""
    rows = torch.zeros(len(decisions), 4096)
    for row, decision in zip(rows, decisions, strict=True):
        for action, sign in ((decision.expert, 1.0), (decision.alternatives[0], -1.0)):
            words = action.split()
            for term in (*words, *pairwise(words)):
                row[sum(ord(letter) * 31**place for place, letter in enumerate(str(term))) % 4096] += sign
    return rows


def accuracy(decisions: list[Decision]) -> float:
    """Of a logistic regression on held-out trajectories."""
    inputs = {split: features([one for one in decisions if one.split == split]) for split in ("train", "test")}
    weights = torch.zeros(4096, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=100)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.softplus(-inputs["train"] @ weights).mean() + 1e-2 * weights.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    scores = inputs["test"] @ weights.detach()
    return float(((scores > 0).float() + 0.5 * (scores == 0)).mean())


def test_a_state_blind_classifier_is_at_most_60_percent_right(pairs: list[Decision]) -> None:
    assert sum(one.split == "train" for one in pairs) > 300
    assert accuracy(pairs) <= 0.6


def test_the_classifier_would_find_a_word_that_gives_it_away(pairs: list[Decision]) -> None:
    assert accuracy([replace(one, alternatives=[f"please {one.alternatives[0]}"]) for one in pairs]) > 0.95
