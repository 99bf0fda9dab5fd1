"""The gradient does not depend on packing (contract 3), and the buffer deals every row exactly once."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from datamodules import RolloutBuffer
from datamodules.buffer import Batch
from tests.conftest import ARCHITECTURE
from zoo.agent import AgentModule
from zoo.policy import word_policy
from zoo.rollout.trajectory import Row

WORDS = [f"w{index}" for index in range(20)]
AGGREGATIONS = ("token_mean", "sequence_mean", "fixed_length")
TOLERANCE = 1e-6  # the contract allows 1e-5; RMSNorm computes in fp32 even in an fp64 model


@functools.cache
def module(**settings: Any) -> AgentModule:
    torch.manual_seed(0)
    made = AgentModule(architecture=dict(ARCHITECTURE), loss_length=32, kl_coef=0.1, **settings)
    made._set_policy(word_policy(ARCHITECTURE, WORDS).double().eval())
    return made


def row(length: int, trajectory: int = 0, seed: int = 0) -> Row:
    """A row whose ratios lie on both sides of the clipping bounds."""
    noise = torch.Generator().manual_seed(1000 * seed + length)
    ids = torch.randint(3, 20, (length,), generator=noise)
    mask = torch.rand(length, generator=noise) < 0.6
    mask[0], mask[-1] = False, length > 1
    with torch.no_grad():
        logprobs = module().policy.logprobs(ids[None])[0]
    made: Any = {
        "ids": ids,
        "mask": mask,
        "old_logprobs": mask * (logprobs + 0.3 * torch.randn(length, generator=noise)),
        "reference_logprobs": logprobs + 0.3 * torch.randn(length, generator=noise),
        "advantages": mask * torch.randn((), generator=noise),
        "trajectory": torch.tensor(trajectory),
    }
    return made


def halves(whole: Row, cut: int) -> list[Row]:
    """The same trained tokens in two rows: the second sees the first's tokens but does not train them."""
    first: Any = {name: value[:cut] if value.dim() else value for name, value in whole.items()}  # type: ignore[attr-defined, index]
    second: Any = {**whole, "mask": whole["mask"] & (torch.arange(len(whole["ids"])) >= cut)}
    return [first, second]


ROWS = [row(length, place, seed=place) for place, length in enumerate([5, 9, 12, 7, 3, 12])]


def gradient(rows: Sequence[Row], agent: AgentModule, budget: int = 10_000, ranks: int = 1) -> Tensor:
    """Gradient of the only minibatch of these rows, summed over ranks."""
    agent.zero_grad()
    for rank in range(ranks):
        buffer = RolloutBuffer(micro_batch_tokens=budget)
        buffer.rank, buffer.world_size = rank, ranks
        buffer.fill(rows)
        for micro in buffer.minibatch(0):
            agent.objective(micro)[0].backward()
    return torch.cat([p.grad.flatten() for p in agent.policy.parameters() if p.grad is not None])


def difference(one: Tensor, other: Tensor) -> float:
    assert one.norm() > 1e-3
    return float((one - other).norm() / one.norm())


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("budget", [12, 30, 10_000])
def test_gradient_does_not_depend_on_micro_batches_or_ranks(aggregation: str, budget: int, ranks: int) -> None:
    agent = module(aggregation=aggregation)
    assert difference(gradient(ROWS, agent), gradient(ROWS, agent, budget, ranks)) < TOLERANCE


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_gradient_does_not_depend_on_how_many_rows_a_trajectory_lies_in(aggregation: str) -> None:
    agent = module(aggregation=aggregation)
    split = [part for place, whole in enumerate(ROWS) for part in (halves(whole, 4) if place in (1, 2) else [whole])]
    assert difference(gradient(ROWS, agent), gradient(split, agent, 24, ranks=2)) < TOLERANCE


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_rows_without_trained_tokens_change_nothing(aggregation: str, ratio: str) -> None:
    agent = module(aggregation=aggregation, ratio=ratio)
    silent: Any = {**row(6, 50), "mask": torch.zeros(6, dtype=torch.bool)}  # a prompt that filled the context
    second: Any = {**silent, "trajectory": torch.tensor(1)}  # and a segment of a trajectory that has written elsewhere
    assert difference(gradient(ROWS, agent), gradient([silent, *ROWS, second], agent, 24)) < TOLERANCE
    buffer = RolloutBuffer()
    buffer.fill([silent])
    assert list(buffer) == [[]]  # nothing to learn from: no step, and no 0 / 0


def test_minibatches_of_an_epoch_have_their_own_denominators() -> None:
    buffer = RolloutBuffer(minibatches=3)
    buffer.fill(ROWS)
    for minibatch in buffer:
        tokens = sum(int(micro["mask"].sum()) for micro in minibatch)
        assert all(int(micro["minibatch_tokens"]) == tokens for micro in minibatch)
        assert all(int(micro["minibatch_sequences"]) == 2 for micro in minibatch)


def dealt(minibatch: Sequence[Batch]) -> list[tuple[int, tuple[int, ...]]]:
    """Trajectory and ids of every row that trains something."""
    return [
        (int(trajectory), tuple(ids[real].tolist()))
        for micro in minibatch
        for trajectory, ids, real, mask in zip(
            micro["trajectory"], micro["ids"], micro["attention"], micro["mask"], strict=True
        )
        if mask.any()
    ]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_row_is_dealt_once_per_epoch_within_the_budget_and_trajectories_stay_together(
    data: st.DataObject,
) -> None:
    shapes = data.draw(st.lists(st.tuples(st.integers(2, 12), st.integers(0, 5)), min_size=1, max_size=12))
    rows = [row(length, 3 * trajectory, seed) for seed, (length, trajectory) in enumerate(shapes)]
    buffer = RolloutBuffer(
        minibatches=data.draw(st.integers(1, 4)),
        epochs=data.draw(st.integers(1, 2)),
        micro_batch_tokens=data.draw(st.integers(12, 60)),
    )
    buffer.prefixes = data.draw(st.booleans())
    buffer.world_size = data.draw(st.integers(1, 3))
    buffer.fill(rows)
    ranks: list[list[list[Batch]]] = []
    for rank in range(buffer.world_size):
        buffer.rank, buffer.position = rank, 0
        ranks.append(list(buffer))
    assert all(len(minibatches) == len(buffer) for minibatches in ranks)
    expected = Counter((int(r["trajectory"]), tuple(r["ids"].tolist())) for r in rows)
    for epoch in range(buffer.epochs):
        seen: Counter[tuple[int, tuple[int, ...]]] = Counter()
        homes: dict[int, int] = {}
        for part in range(buffer.minibatches):
            shares = [minibatches[epoch * buffer.minibatches + part] for minibatches in ranks]
            assert len({len(share) for share in shares}) == 1  # ranks do equally many passes
            assert all(micro["ids"].numel() <= buffer.micro_batch_tokens for share in shares for micro in share)
            for trajectory, ids in (pair for share in shares for pair in dealt(share)):
                seen[trajectory, ids] += 1
                assert homes.setdefault(trajectory, part) == part
        assert seen == expected


def test_no_row_is_padded_to_more_than_twice_its_length() -> None:
    buffer = RolloutBuffer()
    buffer.fill([row(length, length) for length in range(20, 160)])  # lengths spread 1:8
    micros = buffer.minibatch(0)
    assert all(2 * micro["attention"].sum(1).min() > micro["ids"].shape[1] for micro in micros)
    assert len(micros) == 4
    buffer.world_size = 2
    sizes = [micro["ids"].numel() for rank in range(2) for micro in _of_rank(buffer, rank)]
    assert max(sizes) <= -(-sum(range(20, 160)) // 2)  # no rank waits for one that has most of it


def test_rows_that_begin_alike_go_together() -> None:
    """Three prompts of 20 tokens with four replies each, of 2 to 30 tokens: no micro-batch mixes prompts."""
    rows = []
    for place in range(12):
        whole = row(22 + 9 * (place // 3) % 30, place, seed=place)
        whole["ids"][:20] = 3 + place % 3
        rows.append(whole)
    buffer = RolloutBuffer(micro_batch_tokens=4 * 52)
    buffer.fill(rows)
    for prefixes in (False, True):
        buffer.prefixes = prefixes
        micros = buffer.minibatch(0)
        prompts = [len(micro["ids"][:, 0].unique()) for micro in micros]
        assert (max(prompts) == 1) == prefixes
        assert sum(len(micro["ids"]) for micro in micros) == 12
        assert all(micro["ids"].numel() <= 4 * 52 for micro in micros)


def _of_rank(buffer: RolloutBuffer, rank: int) -> list[Batch]:
    buffer.rank = rank
    return buffer.minibatch(0)


def test_the_order_changes_with_the_epoch_and_the_iteration_only() -> None:
    buffer, twin = RolloutBuffer(minibatches=3, epochs=2), RolloutBuffer(minibatches=3, epochs=2)
    orders = []
    for _ in range(2):
        buffer.fill(ROWS)
        twin.fill(ROWS)
        deal = [dealt(minibatch) for minibatch in buffer]
        assert deal == [dealt(minibatch) for minibatch in twin]
        orders += [deal[:3], deal[3:]]
    assert all(one != other for place, one in enumerate(orders) for other in orders[:place])


def same(one: Sequence[Batch], other: Sequence[Batch]) -> bool:
    return len(one) == len(other) and all(
        left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
        for left, right in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("stop", range(7))
def test_a_restored_buffer_deals_the_remaining_minibatches(stop: int) -> None:
    whole = RolloutBuffer(minibatches=3, epochs=2, micro_batch_tokens=24)
    whole.fill(ROWS)
    whole.fill(ROWS)
    expected = list(whole)
    stopped, restored = (RolloutBuffer(minibatches=3, epochs=2, micro_batch_tokens=24) for _ in range(2))
    stopped.fill(ROWS)
    stopped.fill(ROWS)
    walk = iter(stopped)
    for _ in range(stop):
        next(walk)
    state = stopped.state_dict()
    stopped.fill([])  # what was saved must not follow the buffer it was saved from
    restored.load_state_dict(state)
    remaining = list(restored)
    assert len(remaining) == 6 - stop
    assert all(same(left, right) for left, right in zip(remaining, expected[stop:], strict=True))


def test_a_row_that_cannot_fit_or_is_ragged_is_refused() -> None:
    buffer = RolloutBuffer(micro_batch_tokens=8)
    buffer.fill([row(8)])
    with pytest.raises(ValueError, match=r"raise data\.micro_batch_tokens"):
        buffer.fill([row(9)])
    ragged: Any = {**row(5), "advantages": torch.zeros(4)}
    with pytest.raises(ValueError, match=r"\['advantages'\] are not as long as its ids \(5\)"):
        buffer.fill([ragged])
    assert len(buffer.rows) == 1  # a refused fill leaves the rows


@pytest.mark.parametrize("name", ["minibatches", "epochs", "micro_batch_tokens"])
def test_sizes_below_one_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"data.{name} must be at least 1, not 0"):
        RolloutBuffer(**{name: 0})
