"""A few expert states of Household, and a file of pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datamodules import ActionPairDataModule
from datamodules.action_pairs import write_pairs

WORLD: dict[str, Any] = {"environment": "zoo/Household-v0", "max_turns": 30, "seed": 0}
FEW = {"train": 4, "val": 2, "test": 2}


def states(**changes: Any) -> ActionPairDataModule:
    return ActionPairDataModule(**{**WORLD, "ask": "action", "trajectories": FEW, **changes})


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    """A file of decisions whose alternatives are the first other admissible actions."""
    decisions = [one for some in states().decisions.values() for one in some]
    others = [[action for action in one.admissible if action != one.expert][:2] for one in decisions]
    write_pairs(
        tmp_path / "pairs.jsonl",
        [
            replace(one, alternatives=other, thoughts=["find mug sink1"] * len(other))
            for one, other in zip(decisions, others, strict=True)
        ],
    )
    return str(tmp_path / "pairs.jsonl")
