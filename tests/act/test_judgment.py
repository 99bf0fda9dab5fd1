"""What a decision is worth, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.act.judgment import Worth, alternatives, canonical, decision_reward

ADMISSIBLE = ["go fridge1", "look", "open drawer1"]


@pytest.mark.parametrize(
    ("action", "reward"),
    [
        ("open drawer1", 1.0),  # the expert's, and not 1.1 though it is admissible
        ("  Open   DRAWER1. ", 1.0),
        ("look", 0.1),
        ("Look.", 0.1),
        ("fly away", 0.0),
        ("open drawer", 0.0),
        (None, -0.5),
        (" . ", -0.5),
    ],
)
def test_rewards_by_hand(action: str | None, reward: float) -> None:
    assert decision_reward(action, "open drawer1", ADMISSIBLE, Worth()) == reward


def test_values_are_settings() -> None:
    worth = Worth(expert=2.0, admissible=0.0, unreadable=-1.0)
    rewards = [decision_reward(action, "look", ADMISSIBLE, worth) for action in ("look", "go fridge1", "x", None)]
    assert rewards == [2.0, 0.0, 0.0, -1.0]


def test_alternatives_are_few_different_and_not_the_experts() -> None:
    proposed = ["Look", None, "go fridge1", "look .", "", "open drawer1", "sing"]
    assert alternatives(proposed, "go Fridge1", 9) == ["look", "open drawer1", "sing"]
    assert alternatives(proposed, "go Fridge1", 1) == ["look"]
    assert alternatives(["Look ."], "look", 9) == []


@given(st.text())
def test_a_canonical_form_is_its_own(text: str) -> None:
    assert canonical(canonical(text)) == canonical(text)
