"""The agent loop: what ends an episode, what is trained of it, and what a failure costs (contracts 1, 2, 4, 5, 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.buffer import collate
from tests.conftest import ARCHITECTURE
from zoo.agent import AgentModule
from zoo.policy import CausalPolicy, word_policy
from zoo.rollout.context import AppendOnly, ContextManager
from zoo.rollout.engine import Engine, Reply
from zoo.rollout.loop import play
from zoo.rollout.protocol import Protocol, WordProtocol
from zoo.rollout.trajectory import Job, Segment, Task, Trajectory

PLACES, ACTIONS = ("p0", "p1", "p2"), ("a0", "a1")
END = 1


class Corridor(gymnasium.Env[str, str]):
    """Walks on whatever is said. The task's options tell how it ends, after ``steps`` steps, and with which reward."""

    observation_space, action_space = spaces.Text(64), spaces.Text(8)
    vocabulary = (*PLACES, *ACTIONS, "here")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.options, self.time = options or {}, 0
        if self.options.get("fails") == "reset":
            raise OSError("no world today")
        return " ".join(["here", *["p0"] * self.options.get("prompt", 1)]), {"admissible_actions": list(ACTIONS)}

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        self.time += 1
        over = self.time >= self.options.get("steps", 2)
        if over and self.options.get("fails") == "step":
            raise OSError("the world broke")
        words = [PLACES[(self.time + place) % 3] for place in range(self.options.get("words", 2))]
        reward = self.options.get("reward", 1.0) if over else 0.0
        ended = self.options.get("ended", "terminated")
        return " ".join(words), reward, over and ended == "terminated", over and ended == "truncated", {"success": over}


class Place:
    """A world of corridors."""

    def __init__(self, max_new_tokens: int = 3, max_tokens: int = 64, max_turns: int = 8, at_a_time: int = 256) -> None:
        self.protocol: Protocol = WordProtocol(max_new_tokens)
        self.context: ContextManager = AppendOnly(max_tokens)
        self.max_turns, self.concurrent_episodes = max_turns, at_a_time

    def environments(self, count: int) -> Sequence[gymnasium.Env[str, str]]:
        return [Corridor() for _ in range(count)]


def tiny() -> CausalPolicy:
    torch.manual_seed(0)
    return word_policy(ARCHITECTURE, [*WordProtocol().words, *Corridor.vocabulary]).eval()


def jobs(*options: dict[str, Any], group_size: int = 1) -> list[Job]:
    return [Job(Task(0, "train", option), group) for group, option in enumerate(options) for _ in range(group_size)]


def walk(place: Place, *options: dict[str, Any], seed: int = 0, policy: CausalPolicy | None = None) -> list[Trajectory]:
    return play(policy or tiny(), place, jobs(*options), temperature=1.0, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes every reply ``a0 <end>`` (or what is asked for), as far as the cap lets it."""

    def script(words: Sequence[int] | None = None) -> None:
        reply = list(words or (tiny().tokenizer.convert_tokens_to_ids("a0"), END))

        def generate(self: Engine, caps: Sequence[int], stop: Sequence[Sequence[int]]) -> list[Reply]:
            cut = [reply[:cap] for cap in caps]
            return [Reply(ids, [-0.5] * len(ids), ids[-1] == END) for ids in cut]

        monkeypatch.setattr(Engine, "generate", generate)

    return script


@pytest.mark.parametrize(
    ("place", "options", "finish", "turns"),
    [
        (Place(), {}, "answered", 2),
        (Place(), {"ended": "truncated"}, "truncated", 2),
        (Place(), {"steps": 9}, "max_turns", 8),
        (Place(max_turns=2), {"steps": 2}, "answered", 2),  # the last turn may still answer
        (Place(max_new_tokens=1), {}, "generation_cut", 1),
        (Place(max_tokens=5), {}, "context_full", 1),  # 2 + 2 + 2 observed > 5: the observation does not fit
        (Place(max_tokens=6), {}, "context_full", 1),  # it would fit, with no room for a reply
        (Place(max_tokens=7), {}, "context_full", 2),  # room for one token: the reply is cut by the context
        (Place(max_tokens=8), {}, "answered", 2),
        (Place(max_tokens=3), {}, "context_full", 1),
        (Place(max_tokens=2), {}, "context_full", 0),  # the prompt alone fills it
        (Place(), {"fails": "step"}, "environment_error", 2),
        (Place(), {"fails": "reset"}, "environment_error", 0),
    ],
)
def test_every_cap_has_a_finish_reason(
    place: Place, options: dict[str, Any], finish: str, turns: int, says: Any
) -> None:
    says()
    trajectory, sound = walk(place, options, {"steps": 1})
    assert (trajectory.finish, len(trajectory.turns)) == (finish, turns)
    assert trajectory.reward == (None if finish == "environment_error" else float(finish in ("answered", "truncated")))
    assert len(trajectory.segments[0].ids) <= place.context.max_tokens
    if place.context.max_tokens > 3 and place.protocol.max_new_tokens > 1:
        assert (sound.finish, sound.reward) == ("answered", 1.0)  # neighbours are not disturbed


@pytest.mark.parametrize("at_a_time", [1, 2, 3, 5, 8])
def test_a_limit_of_concurrent_episodes_changes_none_of_them(
    at_a_time: int, says: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [{"steps": steps, "words": steps} for steps in (1, 7, 2, 2, 9, 1, 3)]
    options[2:2] = [{"fails": "step"}]
    options += [{"fails": "reset"}, {"fails": "reset"}, {"steps": 4, "prompt": 3}, {"prompt": 70}]
    says()
    expected = walk(Place(), *options)
    rows, generate = [], Engine.generate

    def counted(self: Engine, caps: Sequence[int], stop: Sequence[Sequence[int]]) -> list[Reply]:
        assert len(self.lengths) == len(caps)
        rows.append(len(caps))
        return generate(self, caps, stop)

    monkeypatch.setattr(Engine, "generate", counted)
    place, made = Place(at_a_time=at_a_time), []
    monkeypatch.setattr(
        place, "environments", lambda count: [made.append(Corridor()) or made[-1] for _ in range(count)]
    )
    played = walk(place, *options)
    assert [one.job for one in played] == [one.job for one in expected]
    for one, other in zip(played, expected, strict=True):
        assert (one.finish, one.reward, one.turns) == (other.finish, other.reward, other.turns)
        assert [segment.ids for segment in one.segments] == [segment.ids for segment in other.segments]
    assert max(rows) == len(made) == at_a_time
    if at_a_time < 4:  # a quarter of the places is at most one: every free place is taken at once
        assert all(count == at_a_time for count in rows[:5])


def test_a_broken_environment_does_not_fail_all_that_waits(says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Corridor):
        def reset(self, **_: Any) -> tuple[str, dict[str, Any]]:
            raise OSError("gone for good")

    says()
    place = Place(at_a_time=4)
    monkeypatch.setattr(place, "environments", lambda count: [Broken(), *(Corridor() for _ in range(count - 1))])
    played = walk(place, *[{"steps": 1}] * 24)
    assert sum(one.finish == "answered" for one in played) == 18  # three sound ones of four, in every round


def test_an_unusable_reply_costs_a_turn_and_never_reaches_the_world(says: Any) -> None:
    says([END])
    trajectory, _ = walk(Place(max_turns=3), {}, {})
    assert (trajectory.finish, trajectory.reward, len(trajectory.turns)) == ("max_turns", 0.0, 3)
    assert trajectory.info["invalid_replies"] == 3
    assert [turn.action for turn in trajectory.turns] == [None] * 3
    assert trajectory.turns[1].observation == WordProtocol.correction


@pytest.mark.parametrize("reward", [None, math.nan, math.inf])
def test_a_verdict_that_is_no_number_is_no_reward(reward: float | None, says: Any) -> None:
    says()
    unknown, _ = walk(Place(), {"reward": reward}, {})
    assert (unknown.finish, unknown.reward) == ("answered", None)


def test_a_verdict_missing_on_the_way_makes_the_return_unknown(says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    says()
    step = Corridor.step

    def silent(self: Corridor, action: str) -> Any:
        observation, reward, *rest = step(self, action)
        return observation, reward if self.time > 1 else None, *rest

    monkeypatch.setattr(Corridor, "step", silent)
    assert walk(Place(), {"steps": 3})[0].reward is None


@pytest.mark.parametrize("fails", ["reset", "step"])
def test_when_every_world_fails_the_fault_is_not_one_of_an_episode(fails: str, says: Any) -> None:
    says()
    with pytest.raises(RuntimeError, match="all 3 environments failed"):
        walk(Place(), *[{"fails": fails}] * 3)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_what_is_stored_is_what_was_seen_sampled_and_allowed(data: st.DataObject) -> None:
    """Over random protocols: lengths, masks, and log-probabilities that the trainer reproduces, so the ratio is 1."""
    place = Place(data.draw(st.integers(1, 6)), data.draw(st.integers(2, 40)), data.draw(st.integers(1, 5)))
    shapes = st.fixed_dictionaries(
        {"prompt": st.integers(0, 12), "words": st.integers(0, 8), "steps": st.integers(1, 4)}
    )
    policy = tiny()
    played = walk(
        place, *data.draw(st.lists(shapes, min_size=1, max_size=5)), seed=data.draw(st.integers(0, 99)), policy=policy
    )
    for trajectory in played:
        (segment,) = trajectory.segments
        length = len(segment.ids)
        assert length == len(segment.mask) == len(segment.logprobs)
        assert (
            length <= place.context.max_tokens or not trajectory.turns
        )  # a prompt may be too long, and then stays alone
        assert trajectory.finish
        # The mask is true exactly on the replies, their end-of-turn token included: decoded, they are the turns' texts.
        decode = policy.tokenizer.decode
        written = [token for token, mine in zip(segment.ids, segment.mask, strict=True) if mine]
        assert decode(written).split() == " ".join(turn.reply for turn in trajectory.turns).split()
        shown = [token for token, mine in zip(segment.ids, segment.mask, strict=True) if not mine]
        observed = " ".join(turn.observation for turn in trajectory.turns)
        assert not trajectory.turns or decode(shown).split()[: len(observed.split())] == observed.split()
        finished = sum(turn.action is not None for turn in trajectory.turns)
        assert sum(token == END for token in written) >= finished
        with torch.no_grad():
            exact = policy.logprobs(torch.tensor([segment.ids]))[0]
        mask, stored = torch.tensor(segment.mask), torch.tensor(segment.logprobs)
        assert torch.allclose(exact[mask], stored[mask], atol=1e-4)
        assert not stored[~mask].any()


# -- from episodes to rows --------------------------------------------------------------------------------------------


def agent(**changes: Any) -> AgentModule:
    module = AgentModule(architecture=dict(ARCHITECTURE), **changes)
    module._set_policy(tiny())
    return module


def episode(reward: float | None, group: int = 0, segments: int = 1, turns: int = 1) -> Trajectory:
    """A trajectory of ``segments`` rows with ``turns`` replies each."""
    parts = []
    for _ in range(segments):
        part = Segment.begin([5, 6])
        for _ in range(turns):
            part.write([7, END], [-1.0, -2.0])
            part.read([8])
        parts.append(part)
    return Trajectory(Job(Task(0), group), parts, reward, "answered", [], {})


def test_failures_are_dropped_and_counted_and_do_not_shift_the_others() -> None:
    rows, facts = agent().credit([[episode(1.0), episode(None), episode(0.0), episode(0.0)]])
    alone, _ = agent().credit([[episode(1.0), episode(0.0), episode(0.0)]])
    assert facts["dropped"] == [0.0, 1.0, 0.0, 0.0]
    assert [r["advantages"].tolist() for r in rows] == [r["advantages"].tolist() for r in alone]
    rows, facts = agent().credit([[episode(1.0), episode(None)], [episode(None, 1), episode(None, 1)]])
    assert rows == []
    assert facts["groups_mixed"] == [0.0, 0.0]
    assert facts["groups_rewarded"] == [1.0, 0.0]
    assert facts["dropped"] == [0.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo"])
def test_equal_rewards_leave_no_rows_and_are_counted(kind: str) -> None:
    module = agent(advantage=kind)
    rows, facts = module.credit([[episode(0.1, 0) for _ in range(3)], [episode(float(n), 1) for n in range(3)]])
    assert len(rows) == 3  # of the mixed group
    assert facts["groups_mixed"] == [0.0, 1.0]
    same = [episode(0.1, 0) for _ in range(3)]
    assert module.advantages(same).tolist() == [0.0] * 3  # exactly, where somebody keeps such groups


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("grpo", [1.5, -0.5, -0.5, -0.5]),  # mean 1/4, deviation 1/2
        ("dr_grpo", [0.75, -0.25, -0.25, -0.25]),
        ("rloo", [1.0, -1 / 3, -1 / 3, -1 / 3]),
    ],
)
def test_group_statistics_are_over_trajectories(kind: str, expected: list[float]) -> None:
    group = [episode(1.0, segments=3, turns=4), episode(0.0), episode(0.0, turns=5), episode(0.0, segments=2)]
    rows, _ = agent(advantage=kind).credit([group])
    assert len(rows) == 7
    per_row = [expected[place] for place, trajectory in enumerate(group) for _ in trajectory.segments]
    for row, advantage in zip(rows, per_row, strict=True):
        assert row["advantages"][row["mask"]].unique().tolist() == pytest.approx([advantage], abs=1e-5)
        assert not row["advantages"][~row["mask"]].any()
    owners = [int(row["trajectory"]) for row in rows]
    assert [owners.count(owner) for owner in dict.fromkeys(owners)] == [3, 1, 1, 2]


def test_only_the_mask_says_what_is_trained() -> None:
    """Whatever stands at the places of observations: no loss falls on them, no gradient comes from predicting them."""
    module = agent(kl_coef=0.1)
    (row, _), _ = module.credit([[episode(1.0, turns=2), episode(0.0)]])
    shown = ~row["mask"]
    row["reference_logprobs"] = torch.zeros(len(shown))  # type: ignore[typeddict-unknown-key]
    base: Any = row
    twisted: Any = {name: value.clone() for name, value in base.items()}
    for name in ("old_logprobs", "advantages", "reference_logprobs"):
        twisted[name] = torch.where(shown, torch.tensor(3.7), twisted[name])
    last: Any = {**twisted, "ids": row["ids"].clone()}
    last["ids"][-1] = 9  # an observation that no reply follows

    def gradient(this: Any) -> list[torch.Tensor]:
        module.zero_grad()
        loss, measures = module.objective(collate([this], {0: int(row["mask"].sum())}))
        assert float(measures["loss"][1]) == 1.0
        loss.backward()
        return [parameter.grad for parameter in module.policy.parameters() if parameter.grad is not None]

    expected = gradient(base)
    for other in (twisted, last):
        assert all(torch.equal(one, two) for one, two in zip(expected, gradient(other), strict=True))
