"""The search for the smallest sufficient guidance, and the ratio of mixed-policy optimisation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zoo.actguide.guidance import StrengthSearch, corrupt, fixed_strength, guided_denominator, luffy_weight


def search(actions: int, needed: int, budget: int) -> tuple[int, list[int]]:
    """Run the bisection against an oracle that succeeds from ``needed`` actions on."""
    state, asked = StrengthSearch(actions, budget), []
    while (strength := state.probe) is not None:
        asked.append(strength)
        state.report(strength >= needed)
    return state.strength, asked


@pytest.mark.parametrize("actions", [1, 2, 6, 31, 32])
def test_finds_the_smallest_sufficient_strength(actions: int) -> None:
    for needed in range(1, actions + 1):
        assert search(actions, needed, budget=5)[0] == needed


def test_no_actions_no_guidance() -> None:
    assert search(0, 1, budget=5) == (0, [])


def test_probes_of_six_actions_by_hand() -> None:
    assert search(6, needed=5, budget=5) == (5, [3, 5, 4])
    assert search(6, needed=1, budget=5) == (1, [3, 2, 1])
    assert search(6, needed=7, budget=5) == (6, [3, 5])  # nothing suffices: all actions


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 8))
def test_an_early_end_of_the_budget_returns_a_strength_that_passed(actions: int, needed: int, budget: int) -> None:
    strength, asked = search(actions, min(needed, actions), budget)
    assert len(asked) <= budget
    assert strength >= min(needed, actions)  # never the untested lower end
    assert strength == actions or strength in asked


def test_a_finished_search_takes_no_report() -> None:
    with pytest.raises(ValueError, match="over"):
        StrengthSearch(1, 5).report(True)


def test_fixed_strength_rounds_up() -> None:
    assert [fixed_strength(6, ratio) for ratio in (0.0, 0.25, 0.5, 1.0)] == [0, 2, 3, 6]


def test_hint_noise_is_a_share_and_the_same_at_every_visit() -> None:
    actions = ["right"] * 4000
    noisy = corrupt(actions, ["a", "b"], 0.2, seed=3)
    assert noisy == corrupt(actions, ["a", "b"], 0.2, seed=3)
    assert noisy != corrupt(actions, ["a", "b"], 0.2, seed=4)
    assert sum(action != "right" for action in noisy) / 4000 == pytest.approx(0.2, abs=0.03)
    assert corrupt(actions, ["a"], 0.0, seed=3) == actions


def test_denominator_is_the_guided_old_policy_unless_the_ratio_is_forced_to_one() -> None:
    new = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], requires_grad=True)
    old = torch.tensor([[-1.5, -2.5], [-0.1, -0.2]])
    guided = torch.tensor([False, True])
    assert torch.equal(guided_denominator(new, old, guided, "token"), old)
    forced = guided_denominator(new, old, guided, "none")
    assert torch.equal(forced, torch.tensor([[-1.5, -2.5], [-3.0, -4.0]]))
    assert not forced.requires_grad


def test_luffy_weight_by_hand() -> None:
    new = torch.log(torch.tensor([[0.5, 0.01], [0.5, 0.01]]))
    old = torch.log(torch.tensor([[0.5, 1.0], [0.5, 1.0]]))
    weight = luffy_weight(new, old, torch.tensor([True, False]), gamma=0.1)
    assert weight[0].tolist() == pytest.approx([1 / 1.1, 0.01 / 0.11])  # ratios 1 and 0.01
    assert weight[1].tolist() == [1.0, 1.0]
