"""Credit of ECHO: the paper's worked example token by token, group statistics, and the graph of the later releases."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import ARCHITECTURE
from zoo.echo.credit import OUTCOME, graph_weights, rollout_advantages, token_weights, turn_graph
from zoo.echo.module import ECHOAgent, trace
from zoo.rollout.trajectory import Boundary, Job, Segment, Task, Trajectory


def message(segment: Segment, turn: int, about: int | None = None) -> None:
    """A finding about the turn before (two tokens), then the action of ``turn`` (three), then two observed tokens."""
    if about is not None:
        segment.write([7, 7], [-1.0] * 2, {"source": [0, 0], "finding": [about + 1] * 2})
    segment.write([8, 8, 8], [-1.0] * 3, {"source": [turn + 1] * 3})
    segment.read([9, 9])


def select(segment: Segment) -> None:
    segment.read([4])
    segment.write([5, 5, 6], [-1.0] * 3, {"selection": [1, 1, 0]})  # the end of turn lies outside the block


def episode(reward: float = 1.0, finish: str = "answered", valid: bool = True, group: int = 0) -> Trajectory:
    """Dossier 1.5: turns 0 1 2 and a selection, turns 3 4 and a selection, then 5 6 and the answer; 1 and 4 stay in view."""
    one, two, three = Segment.begin([1, 2]), Segment.begin([1, 2, 3]), Segment.begin([1, 2, 3])
    message(one, 0)
    message(one, 1, about=0)
    message(one, 2, about=1)
    select(one)
    message(two, 3, about=2)
    message(two, 4, about=3)
    select(two)
    message(three, 5, about=4)
    message(three, 6, about=5)
    boundaries = [Boundary(0, 2, chosen=[1], kept=[1, 2]), Boundary(1, 4, chosen=[1], kept=[1, 4], valid=valid)]
    return Trajectory(Job(Task(0), group), [one, two, three], reward, finish, [], {}, boundaries)


def agent(**settings: Any) -> ECHOAgent:
    return ECHOAgent(architecture=dict(ARCHITECTURE), **settings)


def credited(module: ECHOAgent, trajectory: Trajectory, advantage: float = 1.0) -> list[list[float]]:
    return [row["advantages"].tolist() for row in module.rows(trajectory, advantage, 0)]


FINDING_0, FINDING_1, FINDING_2, FINDING_3 = [0, 0], [1, 1], [0, 0], [0, 0]
ACTION_0, ACTION_1, ACTION_2, ACTION_3, ACTION_4 = [0] * 3, [1] * 3, [0] * 3, [0] * 3, [1] * 3
SEEN, SELECTION = [0, 0], [0, 1, 1, 0]
PAPER = [
    [0, 0, *ACTION_0, *SEEN, *FINDING_0, *ACTION_1, *SEEN, *FINDING_1, *ACTION_2, *SEEN, *SELECTION],
    [0, 0, 0, *FINDING_2, *ACTION_3, *SEEN, *FINDING_3, *ACTION_4, *SEEN, *SELECTION],
    [0, 0, 0] + [1] * 5 + SEEN + [1] * 5 + SEEN,
]


def test_the_papers_example_token_by_token() -> None:
    assert credited(agent(), episode()) == PAPER
    assert credited(agent(), episode(), 0.5) == [[0.5 * weight for weight in part] for part in PAPER]


def test_a_finding_is_credited_by_the_turn_it_is_about() -> None:
    trajectory = episode()
    trajectory.boundaries[-1].kept = [0]
    trajectory.boundaries[-1].turn = 0
    first = credited(agent(), trajectory)[0]
    assert first[2:5] == [1] * 3  # action 0
    assert first[7:9] == [1] * 2  # the finding about it, in the message of turn 1
    assert first[9:12] == [0] * 3  # action 1


def test_failed_rollouts_get_exactly_nothing() -> None:
    assert all(set(part) == {0.0} for part in credited(agent(), episode(0.0), -0.5))
    signed = credited(agent(sign="signed"), episode(0.0), -0.5)
    assert signed == [[-0.5 * weight for weight in part] for part in PAPER]


def test_dense_and_segment_credit() -> None:
    written = [segment.mask for segment in episode().segments]
    assert credited(agent(credit="dense"), episode()) == [[float(token) for token in part] for part in written]
    trajectory = episode()
    trajectory.boundaries[-1] = Boundary(1, 4, chosen=[], kept=[])  # only segment 1 holds a turn in view: 4
    first, second, third = credited(agent(credit="segment"), trajectory)
    assert sum(first) == 2  # its selection
    assert [second, third] == [[float(token) for token in part] for part in written[1:]]


def test_an_empty_trace_leaves_selections_and_the_final_segment() -> None:
    trajectory = episode()
    for boundary in trajectory.boundaries:
        boundary.kept, boundary.turn = [], 99
    first, second, third = credited(agent(), trajectory)
    assert (sum(first), sum(second)) == (2, 2)
    assert third == PAPER[2]


def test_only_the_last_boundary_is_the_trace() -> None:
    assert trace(episode().boundaries) == {1, 4}
    assert trace([]) == set()


def test_without_a_boundary_credit_is_dense() -> None:
    trajectory = episode()
    trajectory.segments, trajectory.boundaries = trajectory.segments[:1], []
    assert credited(agent(), trajectory)[0] == [float(token) for token in trajectory.segments[0].mask]


def test_group_statistics() -> None:
    rewards, none = torch.tensor([1.0, 0.0]), torch.tensor([False, False])
    assert rollout_advantages(rewards, none).tolist() == pytest.approx(
        [1.0, -1.0], abs=1e-5
    )  # the population's std is 0.5
    assert rollout_advantages(rewards, none, ddof=1).tolist() == pytest.approx([0.7071, -0.7071], abs=1e-4)
    assert rollout_advantages(torch.tensor([0.1] * 3), torch.tensor([False] * 3)).tolist() == [0.0] * 3


def test_overlong_rollouts_do_not_count() -> None:
    rewards, masked = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([False, False, True, True])
    assert rollout_advantages(rewards, masked).tolist() == pytest.approx([1.0, -1.0, 0.0, 0.0], abs=1e-5)
    one_left = rollout_advantages(rewards, torch.tensor([False, True, True, True]))  # mean 1/4, std sqrt(3)/4
    assert one_left.tolist() == pytest.approx([3**0.5, 0.0, 0.0, 0.0], abs=1e-4)
    assert rollout_advantages(rewards, torch.tensor([True] * 4)).tolist() == [0.0] * 4


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.booleans()), min_size=1, max_size=9))
def test_masked_rollouts_never_matter(rollouts: list[tuple[float, bool]]) -> None:
    rewards = torch.tensor([reward for reward, _ in rollouts])
    masked = torch.tensor([overlong for _, overlong in rollouts])
    ours = rollout_advantages(rewards, masked)
    assert torch.equal(ours, rollout_advantages(torch.where(masked, 1 - rewards, rewards), masked))
    assert not ours[masked].any()
    if int((~masked).sum()) > 1:
        assert float(ours.sum()) == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize(("rule", "kept"), [("mask", 0), ("fail", 3)])
def test_overlong_as_failure_is_an_option(rule: str, kept: int) -> None:
    module = agent(overlong=rule, sign="signed", credit="dense")
    group = [episode(1.0), episode(1.0), episode(0.0, "overlong")]
    rows, facts = module.credit([group])
    assert len(rows) == 3 * kept
    assert facts["overlong"] == [0.0, 0.0, 1.0]


def test_the_graph_of_the_example() -> None:
    parents = turn_graph([[0, 1, 2], [3, 4], [5, 6]], [[1], [1, 4]])
    assert parents[0] == []
    assert parents[2] == [(1, "turn")]
    assert parents[3] == [(1, "segment")]
    assert parents[5] == [(1, "segment"), (4, "segment")]
    assert parents[OUTCOME] == [(6, "turn")]
    weights = graph_weights(parents, gamma_turn=1.0, gamma_segment=0.5, combine="sum", cap=5.0)
    # 6 and 5 weigh 1; 4 hangs on 5: 0.5; so does 3; 1 on 5 and on 3: 0.5 + 0.25; 0 on 1.
    assert weights == {OUTCOME: 1.0, 6: 1.0, 5: 1.0, 4: 0.5, 3: 0.5, 1: 0.75, 0: 0.75}
    assert graph_weights(parents, 1.0, 0.5, "max", 5.0)[1] == 0.5  # type: ignore[index]
    # Capped on the way: 6 and 5 weigh 0.6, 4 and 3 half of that, 1 gets 0.3 + 0.15.
    assert graph_weights(parents, 1.0, 0.5, "sum", 0.6)[1] == pytest.approx(0.45)  # type: ignore[index]


def test_the_releases_golden_chain() -> None:
    """Group {1, 0} without norm: A = 0.5; 0 -> 1 -> 2 -> outcome at 0.5 each gives 0.0625, 0.125, 0.25."""
    parents = turn_graph([[0], [1], [2], []], [[0], [1], [2]])
    weights = graph_weights(parents, gamma_segment=0.5)
    assert weights is not None
    assert [0.5 * weights[turn] for turn in (2, 1, 0)] == [0.25, 0.125, 0.0625]
    segments = [Segment.begin([1]) for _ in range(4)]
    for turn, segment in enumerate(segments[:3]):
        segment.write([8], [-1.0], {"source": [turn + 1]})
        segment.write([5], [-1.0], {"selection": [1]})
    segments[3].write([6], [-1.0])
    boundaries = [Boundary(place, 99, chosen=[place], kept=[place]) for place in range(3)]
    trajectory = Trajectory(Job(Task(0)), segments, 1.0, "answered", [], {}, boundaries)
    rows = credited(agent(credit="graph", gamma_segment=0.5), trajectory, 0.5)
    # A selection weighs as much as the first turn behind it, the last one as the outcome.
    assert rows == [[0, 0.0625, 0.125], [0, 0.125, 0.25], [0, 0.25, 0.5], [0, 0.5]]


def test_a_turn_that_was_kept_but_never_chosen_is_outside_the_graph() -> None:
    trajectory = episode()
    trajectory.boundaries[1].chosen = [4]
    trajectory.boundaries[0].chosen = []
    first = credited(agent(credit="graph"), trajectory)[0]
    assert sum(first[:20]) == 0


def test_a_cycle_or_an_unreadable_selection_falls_back_to_the_hard_mask() -> None:
    assert graph_weights({OUTCOME: [(1, "turn")], 1: [(0, "turn")], 0: [(1, "turn")]}) is None
    assert credited(agent(credit="graph", gamma_segment=0.1), episode(valid=False)) == PAPER
    assert credited(agent(credit="graph", gamma_segment=0.1), episode()) != PAPER


def test_tags_of_turns_without_weight_are_harmless() -> None:
    weights = token_weights({"source": [0, 9, 1]}, 3, False, {0: 0.5})
    assert weights.tolist() == [0.0, 0.0, 0.5]


def test_statistics_are_over_rollouts_not_rows() -> None:
    module = agent(credit="dense", sign="signed")
    short = episode(0.0)
    short.segments, short.boundaries = short.segments[:1], []
    rows, _ = module.credit([[episode(1.0), short]])
    values = [float(row["advantages"][row["mask"]][0]) for row in rows]
    assert values == pytest.approx([1.0, 1.0, 1.0, -1.0], abs=1e-5)
    assert [int(row["trajectory"]) for row in rows] == [0, 0, 0, 3]
