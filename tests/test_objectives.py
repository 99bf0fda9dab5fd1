"""Objectives against numbers worked by hand, float64 loops, and properties."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zoo.objectives import aggregate, clipped_surrogate, group_advantages, kl_estimate, log_ratio

F64 = torch.float64
ADVANTAGES, RATIOS, KLS = ("grpo", "dr_grpo", "rloo"), ("token", "sequence"), ("k1", "k2", "k3")
AGGREGATIONS = ("token_mean", "sequence_mean", "fixed_length")


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


# -- the same things once more as plain loops over floats --------------------------------------------------------


def looped_advantages(rewards: list[float], groups: list[int], kind: str, ddof: int, eps: float) -> list[float]:
    result = []
    for reward, group in zip(rewards, groups, strict=True):
        members = [other for other, its in zip(rewards, groups, strict=True) if its == group]
        n, mean = len(members), math.fsum(members) / len(members)
        std = math.sqrt(math.fsum((other - mean) ** 2 for other in members) / max(n - ddof, 1))
        if len(set(members)) == 1:
            result.append(0.0)
        elif kind == "rloo":
            result.append(reward - (math.fsum(members) - reward) / (n - 1))
        else:
            result.append((reward - mean) / (std + eps) if kind == "grpo" else reward - mean)
    return result


# Eighths: sums, and shifts by a whole number, are exact, so equal rewards stay equal and a std is 0 or far from it.
EIGHTHS = st.lists(st.tuples(st.integers(0, 4), st.integers(-40, 40).map(lambda n: n / 8)), min_size=1, max_size=24)


@given(EIGHTHS, st.sampled_from(ADVANTAGES), st.integers(0, 1), st.sampled_from([1e-6, 1e-2]), st.integers(-9, 9))
def test_advantages_equal_a_loop_and_do_not_see_a_shift(
    drawn: list[tuple[int, float]], kind: str, ddof: int, eps: float, shift: int
) -> None:
    groups, rewards = zip(*drawn, strict=True)
    values = torch.tensor(rewards, dtype=F64)
    result = group_advantages(values, torch.tensor(groups), kind, ddof, eps)  # type: ignore[arg-type]
    expected = looped_advantages(list(rewards), list(groups), kind, ddof, eps)
    assert result.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    moved = group_advantages(values + shift, torch.tensor(groups), kind, ddof, eps)  # type: ignore[arg-type]
    assert torch.allclose(moved, result, rtol=1e-10, atol=1e-12)


def drawn_rows(seed: int, rows: int = 7, length: int = 5) -> tuple[Tensor, ...]:
    """Log-probabilities of policy, behaviour and reference, advantages, a mask with holes and a row without a token."""
    generator = torch.Generator().manual_seed(seed)
    values = [-3 * torch.rand(rows, length, generator=generator, dtype=F64) for _ in range(3)]
    mask = torch.rand(rows, length, generator=generator) < 0.6
    mask[-1] = False
    return *values, torch.randn(rows, length, generator=generator, dtype=F64), mask


SEEDS = st.integers(0, 10**6)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.sampled_from(RATIOS))
def test_log_ratio_equals_a_loop(seed: int, level: str) -> None:
    new, old, _, _, mask = drawn_rows(seed)
    result = log_ratio(new, old, mask, level)  # type: ignore[arg-type]
    assert bool(result.isfinite().all())  # in the row without a trained token too: it is logged
    for i, row in enumerate(mask.tolist()):
        trained = [t for t, kept in enumerate(row) if kept]
        shifts = {t: float(new[i, t]) - float(old[i, t]) for t in trained}
        mean = math.fsum(shifts.values()) / max(len(trained), 1)
        for t in trained:
            expected = shifts[t] if level == "token" else mean
            assert float(result[i, t]) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.sampled_from(KLS))
def test_kl_equals_a_loop(seed: int, kind: str) -> None:
    policy, _, reference, _, _ = drawn_rows(seed)
    policy[0, 0], policy[0, 1] = -50.0, 40.0  # both sides of the limit
    result = kl_estimate(policy, reference, kind).flatten().tolist()  # type: ignore[arg-type]
    for value, log_p, log_q in zip(result, policy.flatten().tolist(), reference.flatten().tolist(), strict=True):
        d = min(max(log_q - log_p, -10.0), 10.0)
        expected = {"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - d - 1}[kind]
        assert value == pytest.approx(expected, rel=1e-12, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.sampled_from(AGGREGATIONS), st.lists(st.integers(0, 7), max_size=4), st.randoms())
def test_aggregate_equals_a_loop_however_the_rows_are_cut(seed: int, kind: str, cuts: list[int], rng: object) -> None:
    values, _, _, _, mask = drawn_rows(seed)
    rows = [[float(v) for v, kept in zip(*row, strict=True) if kept] for row in zip(values, mask, strict=True)]
    shares = [math.fsum(row) / (max(len(row), 1) if kind == "sequence_mean" else 1) for row in rows]
    order = torch.tensor(sorted(range(7), key=lambda _: rng.random()))  # type: ignore[attr-defined]
    edges = [0, *sorted(cuts), 7]
    parts = [order[a:b] for a, b in itertools.pairwise(edges)]
    pieces = [float(aggregate(values[part], mask[part], kind, 11.0)) for part in parts]  # type: ignore[arg-type]
    assert math.fsum(pieces) == pytest.approx(math.fsum(shares) / 11, rel=1e-12, abs=1e-12)


def whole_loss(rows: tuple[Tensor, ...], level: str, kl: str, aggregation: str) -> tuple[float, Tensor]:
    """All functions in a row, as a method uses them, and the gradient of the policy's log-probabilities."""
    new, old, reference, advantages, mask = rows
    new = new.clone().requires_grad_()
    shift = log_ratio(new, old, mask, level)  # type: ignore[arg-type]
    loss, _ = clipped_surrogate(shift, advantages, 0.2, 0.28, 3.0)
    loss = loss + 0.1 * kl_estimate(new, reference, kl)  # type: ignore[arg-type]
    total = aggregate(loss, mask, aggregation, 11.0)  # type: ignore[arg-type]
    total.backward()
    assert new.grad is not None
    return float(total.detach()), new.grad


@settings(max_examples=60, deadline=None)
@given(
    SEEDS,
    st.sampled_from(RATIOS),
    st.sampled_from(KLS),
    st.sampled_from(AGGREGATIONS),
    st.sampled_from([0.0, -7.5, 1e30, -math.inf, math.nan]),
)
def test_what_stands_at_masked_places_never_matters(
    seed: int, level: str, kl: str, aggregation: str, rubbish: float
) -> None:
    *values, advantages, mask = drawn_rows(seed)
    loss, gradient = whole_loss((*values, advantages, mask), level, kl, aggregation)
    other = [torch.where(mask, value, rubbish) for value in values]
    changed = whole_loss((*other, torch.where(mask, advantages, -9.0), mask), level, kl, aggregation)
    assert changed[0] == loss
    assert torch.equal(changed[1], gradient)
    assert bool((gradient[~mask] == 0).all())
    one = [torch.where(mask, values[0], rubbish), *values[1:]]  # the policy's alone
    assert whole_loss((*one, advantages, mask), level, kl, aggregation)[0] == loss


def test_gspo_gives_every_token_the_gradient_of_its_own_advantage() -> None:
    new = torch.tensor([[-1.0, -2.0]], dtype=F64, requires_grad=True)
    old = torch.tensor([[-1.2, -2.6]], dtype=F64)  # geometric mean of the ratios: exp(0.4)
    loss, _ = clipped_surrogate(
        log_ratio(new, old, torch.ones(1, 2), "sequence"), torch.tensor([[1.0, -2.0]], dtype=F64), 9, 9
    )
    loss.sum().backward()
    assert new.grad is not None
    assert new.grad[0].tolist() == pytest.approx([-math.exp(0.4), 2 * math.exp(0.4)])


def test_the_ratio_is_bounded_at_twenty_nats_either_way_and_not_before() -> None:
    shift = torch.tensor([[19.0, 1e4, -19.0, -1e4]], dtype=F64, requires_grad=True)
    advantage = torch.tensor([[-1.0, -1.0, 1.0, 1.0]], dtype=F64)
    loss, _ = clipped_surrogate(shift, advantage)
    assert loss[0].tolist() == pytest.approx([math.exp(19), math.exp(20), -math.exp(-19), -math.exp(-20)], abs=0.0)
    loss.sum().backward()
    assert shift.grad is not None
    assert shift.grad[0].tolist() == pytest.approx([math.exp(19), 0.0, -math.exp(-19), 0.0], abs=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.float32])
def test_the_dtype_is_kept(dtype: torch.dtype, mask_dtype: torch.dtype) -> None:
    *values, advantages, mask = (value.to(dtype) for value in drawn_rows(0))
    mask, results = mask.to(mask_dtype), []
    for kind in ADVANTAGES:
        results.append(group_advantages(values[0][:, 0], groups_of(3, 4), kind))  # type: ignore[arg-type]
    for level in RATIOS:
        results.append(log_ratio(values[0], values[1], mask, level))  # type: ignore[arg-type]
    for kind in KLS:
        results.append(kl_estimate(values[0], values[2], kind))  # type: ignore[arg-type]
    for kind in AGGREGATIONS:
        results.append(aggregate(values[0], mask, kind, torch.tensor(11)))  # type: ignore[arg-type]
    results.append(clipped_surrogate(values[0], advantages, dual_clip=3.0)[0])
    assert {result.dtype for result in results} == {dtype}


def test_float64_rewards_are_compared_in_float64() -> None:
    advantages = group_advantages(torch.tensor([0.1, 0.3], dtype=F64), groups_of(2), "dr_grpo")
    assert advantages.tolist() == pytest.approx([-0.1, 0.1], rel=1e-14, abs=0.0)


def test_the_first_reward_that_is_not_finite_is_named() -> None:
    with pytest.raises(ValueError, match=r"rewards\[2\] is nan"):
        group_advantages(torch.tensor([0.0, 1.0, math.nan, -math.inf]), groups_of(2, 2))
    with pytest.raises(ValueError, match=r"rewards\[3\] is -inf"):
        group_advantages(torch.tensor([0.0, 1.0, 2.0, -math.inf]), groups_of(2, 2))


def test_a_misspelt_kind_is_refused() -> None:
    ones, groups = torch.ones(1, 2), torch.tensor([0, 0])
    with pytest.raises(ValueError, match="'GRPO': use one of grpo, dr_grpo, rloo"):
        group_advantages(ones[0], groups, "GRPO")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'seq': use one of token, sequence"):
        log_ratio(ones, ones, ones, "seq")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'K3': use one of k1, k2, k3"):
        kl_estimate(ones, ones, "K3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'mean': use one of token_mean, sequence_mean, fixed_length"):
        aggregate(ones, ones, "mean", 2.0)  # type: ignore[arg-type]
