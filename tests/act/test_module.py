"""ACTCritic: what is rewarded, what is logged, and the way from states to pairs to a critic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from datamodules import ActionPairDataModule
from datamodules.action_pairs import read_pairs
from tests.act.conftest import FEW, WORLD
from tests.conftest import ARCHITECTURE, small_data
from zoo import ACTCritic
from zoo.act.module import loop_scores
from zoo.commands import run
from zoo.rollout.protocol import ChoiceProtocol, WordProtocol
from zoo.rollout.trajectory import Job, Segment, Task, Trajectory, Turn

INFO = {"expert": "open drawer1", "admissible": ["look", "open drawer1"], "success": False}


def reply(action: str | None, group: int = 0, **changes: Any) -> Trajectory:
    segment = Segment.begin([5, 6])
    segment.write([7, 8], [-1.0, -1.0])
    info = {**INFO, "success": action == "open drawer1", **changes.pop("info", {})}
    ended = "max_turns" if action is None else "answered"
    job = Job(Task(0, "train"), group)
    return Trajectory(job, [segment], changes.pop("reward", 0.0), ended, [Turn("", "", action)], info)


def critic(**settings: Any) -> ACTCritic:
    module = ACTCritic(architecture=ARCHITECTURE, **settings)
    module.trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    return module


def test_a_group_is_compared_by_its_decisions() -> None:
    """Rewards 1, .1, 0, -.5: mean .15, unbiased std sqrt(1.17 / 3) = .6245."""
    rows, facts = critic().credit([[reply(action) for action in ("open drawer1", "look", "sing", None)]])
    expected = [0.85 / 0.6245, -0.05 / 0.6245, -0.15 / 0.6245, -0.65 / 0.6245]
    assert [float(row["advantages"][-1]) for row in rows] == pytest.approx(expected, abs=1e-3)
    assert all(torch.equal(row["advantages"] != 0, row["mask"]) for row in rows)  # thoughts and action alike, no prompt
    assert facts["readable"] == [1, 1, 1, 0]
    assert facts["admissible"] == [1, 1, 0, 0]
    assert facts["groups_without_expert"] == [0]


def test_equal_groups_teach_nothing_and_those_without_the_expert_are_counted() -> None:
    rows, facts = critic().credit([[reply("look", 0), reply("look", 0)], [reply("look", 1), reply("sing", 1)]])
    assert {int(row["trajectory"]) for row in rows} == {0, 1}
    assert len(rows) == 2
    assert facts["groups_without_expert"] == [0, 1]


def test_a_reply_whose_world_failed_has_no_reward() -> None:
    group = [reply("open drawer1", reward=None), reply("look"), reply("open drawer1")]
    critic().credit([group])
    assert [trajectory.reward for trajectory in group] == [None, 0.1, 1.0]


def test_the_order_of_the_candidates_plays_no_part_in_the_reward() -> None:
    for swapped in (False, True):
        group = [reply(action, info={"swapped": swapped}) for action in ("open drawer1", "look")]
        _, facts = critic().credit([group])
        assert [trajectory.reward for trajectory in group] == [1.0, 0.1]
        assert facts["success_second" if swapped else "success_first"] == [1.0, 0.0]


def test_random_rewards_do_not_know_the_decision() -> None:
    groups = [[reply("open drawer1", group), reply("look", group)] for group in range(200)]
    for index, group in enumerate(groups):
        for trajectory in group:
            trajectory.job.task = Task(index, "train")
    critic(reward="random").credit(groups)
    right = [group[0].reward for group in groups]
    assert set(right) == {0.0, 1.0}
    assert sum(map(float, right)) / 200 == pytest.approx(0.5, abs=0.1)


def test_episodes_of_other_worlds_keep_their_reward() -> None:
    group = [
        Trajectory(one.job, one.segments, reward, "answered", one.turns, {})
        for reward in (1.0, 0.0)
        for one in [reply("x")]
    ]
    rows, facts = critic().credit([group])
    assert len(rows) == 2
    assert [trajectory.reward for trajectory in group] == [1.0, 0.0]
    assert "readable" not in facts


def test_from_states_to_pairs_to_a_critic_and_its_scores(tmp_path: Path) -> None:
    """The whole way by command: a policy that knows nothing writes pairs, and a critic learns from them."""
    shape = json.dumps({**ARCHITECTURE, "max_position_embeddings": 512})
    data = [f"--data.{name}={value}" for name, value in {**WORLD, "tasks_per_iteration": 8, "group_size": 4}.items()]
    common = [
        "--trainer.accelerator=cpu",
        "--model=ACTCritic",
        f"--model.architecture={shape}",
        "--data=ActionPairDataModule",
    ]
    common += [
        *data,
        f"--data.trajectories={json.dumps(FEW)}",
        "--data.protocol=ChoiceProtocol",
        "--data.protocol.labels=20",
    ]
    made = f"--trainer.default_root_dir={tmp_path}/pairs"
    run(["predict", *common, made, "--data.ask=action", "--model.eval_temperature=1.0", "--model.eval_samples=2"])
    pairs = read_pairs(tmp_path / "pairs" / "pairs.jsonl")
    states = ActionPairDataModule(**WORLD, ask="action", trajectories=FEW, protocol=ChoiceProtocol(20)).decisions
    total = sum(map(len, states.values()))
    assert 0 < len(pairs) <= total  # an untrained policy seldom says what can be read
    assert all(1 <= len(one.alternatives) <= 2 and set(one.alternatives) <= set(one.admissible) for one in pairs)
    pairs_file = f"--data.pairs={tmp_path}/pairs/pairs.jsonl"
    run(["fit", *common, f"--trainer.default_root_dir={tmp_path}/critic", pairs_file, "--trainer.max_epochs=1"])
    scores = (tmp_path / "critic" / "metrics.csv").read_text().splitlines()[0]
    assert {"val/success_first", "val/success_second", "train/readable", "train/groups_without_expert"} <= set(
        scores.split(",")
    )


def test_loops_are_actions_repeated_after_a_failure() -> None:
    seen = ["at sink1 .", "nothing happens .", "Nothing happens.", "at shelf1 .", "at lamp1 ."]
    said = ["go shelf2", "go shelf2", "go shelf1", "go lamp1", "use lamp1"]
    episode = reply("x")
    episode.turns = [Turn(observation, "", action) for observation, action in zip(seen, said, strict=True)]
    assert loop_scores([episode]) == {"failures": [1, 1, 0, 0], "repeats_after_failure": [1, 0]}


def test_evaluation_in_a_world_shows_no_candidates() -> None:
    data = small_data(environment="zoo/Household-v0", environment_args=None, protocol=WordProtocol(8), max_turns=3)
    module = critic()
    module.trainer.datamodule = data  # type: ignore[attr-defined]
    module.configure_model()
    played = module.predict_step(data.tasks("test")[:4], 0)
    words = [module.policy.tokenizer.decode(segment.ids) for one in played for segment in one.segments]
    assert not any("better" in text.split() for text in words)
