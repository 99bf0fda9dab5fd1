"""Objectives against numbers worked by hand, float64 loops, and properties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zoo.objectives import aggregate, clipped_surrogate, group_advantages, kl_estimate, log_ratio

F64 = torch.float64


def groups_of(*sizes: int) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


def test_advantages_by_hand() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 3.0, 2.0], dtype=F64)
    groups = groups_of(2, 4)
    # group 0: mean .5, sample std sqrt(.5); group 1 (0, 1, 3, 2): mean 1.5, sample variance 5/3
    half, wide = math.sqrt(0.5), math.sqrt(5 / 3)
    expected = [0.5 / half, -0.5 / half, -1.5 / wide, -0.5 / wide, 1.5 / wide, 0.5 / wide]
    assert group_advantages(rewards, groups, eps=0.0).tolist() == pytest.approx(expected)
    population = [1.0, -1.0, *(value / math.sqrt(1.25) for value in (-1.5, -0.5, 1.5, 0.5))]
    assert group_advantages(rewards, groups, ddof=0, eps=0.0).tolist() == pytest.approx(population)
    assert group_advantages(rewards, groups, "dr_grpo").tolist() == [0.5, -0.5, -1.5, -0.5, 1.5, 0.5]
    # leave one out: 1 - 0, 0 - 1; 0 - 2, 1 - 5/3, 3 - 1, 2 - 4/3
    assert group_advantages(rewards, groups, "rloo").tolist() == pytest.approx([1, -1, -2, -2 / 3, 2, 2 / 3])
    assert float(group_advantages(torch.tensor([1.0, 0.0]), groups_of(2), eps=half)[0]) == pytest.approx(
        0.5 / (2 * half)
    )


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo"])
@pytest.mark.parametrize("value", [0.1, 0.0, -3.7, 1e8])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_equal_rewards_give_exactly_zero(kind: str, value: float, size: int) -> None:
    rewards = torch.tensor([value] * size + [1.0, 0.0])
    advantages = group_advantages(rewards, groups_of(size, 2), kind)  # type: ignore[arg-type]
    assert advantages[:size].tolist() == [0.0] * size
    assert advantages[size] > 0


def test_a_reward_that_is_none_of_the_kind_is_refused() -> None:
    for wrong in (math.nan, math.inf):
        with pytest.raises(ValueError, match=r"rewards\[1\]"):
            group_advantages(torch.tensor([0.0, wrong]), groups_of(2))


REWARDS = st.lists(st.tuples(st.integers(0, 4), st.floats(-5, 5)), min_size=1, max_size=24)


@given(REWARDS, st.sampled_from(["grpo", "dr_grpo", "rloo"]), st.randoms())
def test_advantages_sum_to_zero_and_know_neither_order_nor_origin(
    drawn: list[tuple[int, float]], kind: str, rng: object
) -> None:
    groups, rewards = (torch.tensor(column) for column in zip(*drawn, strict=True))
    rewards = rewards.to(F64)
    result = group_advantages(rewards, groups, kind)  # type: ignore[arg-type]
    for group in groups.unique():
        assert float(result[groups == group].sum()) == pytest.approx(0.0, abs=1e-6)
    order = torch.tensor(sorted(range(len(groups)), key=lambda _: rng.random()))  # type: ignore[attr-defined]
    assert torch.allclose(group_advantages(rewards[order], groups[order], kind), result[order])  # type: ignore[arg-type]
    if kind != "grpo":  # a std near 0 amplifies rounding
        assert torch.allclose(group_advantages(rewards + 3, groups, kind), result, atol=1e-9)  # type: ignore[arg-type]


def test_surrogate_by_hand() -> None:
    ratio = torch.tensor([[1.0, 1.5, 0.5, 1.5, 0.5, 5.0]], dtype=F64)
    advantage = torch.tensor([[2.0, 1.0, 1.0, -1.0, -1.0, -1.0]], dtype=F64)
    loss, clipped = clipped_surrogate(ratio.log(), advantage, 0.2, 0.28, 3.0)
    assert loss[0].tolist() == pytest.approx([-2.0, -1.28, -0.5, 1.5, 0.8, 3.0])
    assert clipped[0].tolist() == [False, True, False, False, True, True]
    loss, clipped = clipped_surrogate(ratio.log(), advantage, 0.2, 0.28)
    assert float(loss[0, 5]) == pytest.approx(5.0)
    assert not bool(clipped[0, 5])


@settings(max_examples=50)
@given(st.floats(-3, 3), st.floats(-2, 2), st.sampled_from([None, 3.0]))
def test_surrogate_equals_a_scalar_loop_and_clipping_means_no_gradient(
    shift: float, advantage: float, dual: float | None
) -> None:
    value = torch.tensor([[shift]], dtype=F64, requires_grad=True)
    loss, clipped = clipped_surrogate(value, torch.tensor([[advantage]], dtype=F64), 0.2, 0.28, dual)
    r = math.exp(shift)
    expected = -min(r * advantage, min(max(r, 0.8), 1.28) * advantage)
    if dual is not None and advantage < 0:
        expected = min(expected, -dual * advantage)
    assert float(loss.detach()) == pytest.approx(expected)
    loss.sum().backward()
    assert value.grad is not None
    if clipped:
        assert float(value.grad) == 0.0
    else:
        assert float(value.grad) == pytest.approx(-r * advantage, abs=1e-9)


def test_broken_rows_stay_finite() -> None:
    loss, _ = clipped_surrogate(torch.tensor([[1e4, -1e4]]), torch.tensor([[-1.0, 1.0]]))
    assert bool(loss.isfinite().all())
    assert float(kl_estimate(torch.tensor(-1e4), torch.tensor(0.0))) == pytest.approx(math.exp(10) - 11)


def test_kl_by_hand_and_on_average() -> None:
    policy, reference = torch.tensor(-1.0, dtype=F64), torch.tensor(-1.5, dtype=F64)
    assert float(kl_estimate(policy, reference, "k1")) == pytest.approx(0.5)
    assert float(kl_estimate(policy, reference, "k2")) == pytest.approx(0.125)
    assert float(kl_estimate(policy, reference, "k3")) == pytest.approx(math.exp(-0.5) + 0.5 - 1)
    p, q = torch.tensor([0.7, 0.2, 0.1], dtype=F64), torch.tensor([0.5, 0.3, 0.2], dtype=F64)
    exact = float((p * (p / q).log()).sum())
    for kind in ("k1", "k3"):
        assert float((p * kl_estimate(p.log(), q.log(), kind)).sum()) == pytest.approx(exact)  # type: ignore[arg-type]


def test_sequence_ratio_is_the_geometric_mean_with_gspos_gradient() -> None:
    new = torch.tensor([[-1.0, -2.0, -9.0], [-1.0, -1.0, -1.0]], dtype=F64, requires_grad=True)
    old = torch.tensor([[-1.2, -2.6, 0.0], [-1.0, -1.3, -1.6]], dtype=F64)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    shift = log_ratio(new, old, mask, "sequence")
    assert shift[0, :2].tolist() == pytest.approx([0.4, 0.4])  # (0.2 + 0.6) / 2
    assert shift[1].tolist() == pytest.approx([0.3] * 3)  # (0 + 0.3 + 0.6) / 3
    loss, _ = clipped_surrogate(shift, torch.ones_like(old), 9, 9)
    aggregate(loss, mask, "sequence_mean", 2).backward()
    assert new.grad is not None
    assert new.grad[0].tolist() == pytest.approx([-math.exp(0.4) / 4, -math.exp(0.4) / 4, 0.0])
    assert torch.equal(log_ratio(new, old, mask, "token"), new - old)


def test_aggregation_by_hand() -> None:
    values = torch.tensor([[1.0, 2.0, 100.0], [6.0, 100.0, 100.0]], dtype=F64)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert float(aggregate(values, mask, "token_mean", 3)) == pytest.approx(3.0)  # (1 + 2 + 6) / 3
    assert float(aggregate(values, mask, "sequence_mean", 2)) == pytest.approx(3.75)  # (1.5 + 6) / 2
    assert float(aggregate(values, mask, "fixed_length", 2 * 4)) == pytest.approx(9 / 8)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from(["token_mean", "sequence_mean", "fixed_length"]))
def test_shares_of_micro_batches_add_up_and_masked_values_never_matter(seed: int, cut: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(7, 5, generator=generator, dtype=F64)
    mask = torch.rand(7, 5, generator=generator) < 0.6
    whole = aggregate(values, mask, kind, 11.0)  # type: ignore[arg-type]
    parts = [aggregate(values[s], mask[s], kind, 11.0) for s in (slice(0, cut), slice(cut, 7))]  # type: ignore[arg-type]
    assert float(sum(parts)) == pytest.approx(float(whole))
    noisy = torch.where(mask, values, torch.full_like(values, math.nan)).requires_grad_()
    aggregate(noisy, mask, kind, 11.0).backward()  # type: ignore[arg-type]
    assert noisy.grad is not None
    assert bool((noisy.grad[~mask] == 0).all())
    assert float(aggregate(noisy.detach(), mask, kind, 11.0)) == pytest.approx(float(whole))  # type: ignore[arg-type]
