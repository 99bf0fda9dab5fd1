"""The clue lock: what is shared between tasks, what is kept apart, what is told."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import datamodules.environments  # noqa: F401
from datamodules.environments.clue_lock import ClueLock


def play(env: ClueLock, actions: list[str]) -> tuple[float, bool, int]:
    total = 0.0
    for count, action in enumerate(actions, 1):
        _, reward, terminated, _, info = env.step(action)
        total += reward
        if terminated:
            return total, info["success"], count
    return total, False, len(actions)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["train", "val", "test"]))
def test_the_solution_opens_and_any_wrong_action_ends(seed: int, split: str) -> None:
    env = ClueLock()
    env.reset(seed=seed, options={"split": split})
    assert play(env, list(env.solution)) == (1.0, True, 6)
    env.reset(seed=seed, options={"split": split})
    wrong = [*env.solution[:3], "a7" if env.solution[3] != "a7" else "a6", *env.solution[4:]]
    assert play(env, wrong) == (0.0, False, 4)
    env.reset(seed=seed, options={"split": split})
    assert play(env, ["gibberish"]) == (0.0, False, 1)


def test_a_task_is_its_seed_and_split() -> None:
    one, other = ClueLock(), ClueLock()
    assert one.reset(seed=5) == other.reset(seed=5)
    first = list(one.sequence)
    one.reset(seed=6)
    assert one.sequence != first
    one.reset(seed=5, options={"split": "val"})
    assert one.sequence != first


def test_splits_share_no_clue_sequence_but_share_the_mapping() -> None:
    env, seen, mapping = ClueLock(clues=8, steps=4), {}, {}
    for split in ("train", "val", "test"):
        seen[split] = set()
        for seed in range(800):
            env.reset(seed=seed, options={"split": split})
            seen[split].add(tuple(env.sequence))
            for clue, answer in zip(env.sequence, env.solution, strict=True):
                assert mapping.setdefault(clue, answer) == answer
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["val"]
    assert not seen["val"] & seen["test"]
    assert len(seen["test"]) > 100


def test_only_training_tells_the_solution() -> None:
    env = ClueLock()
    _, info = env.reset(seed=1, options={"split": "train"})
    assert info["action_data"] == env.solution
    for split in ("val", "test"):
        assert "action_data" not in env.reset(seed=1, options={"split": split})[1]


def test_a_new_mapping_for_every_task() -> None:
    env = ClueLock(mapping_seed=None)
    answers = set()
    for seed in range(50):
        env.reset(seed=seed)
        answers.add(dict(zip(env.sequence, env.solution, strict=True)).get(0))
    assert len(answers) > 5
    again = ClueLock(mapping_seed=None)
    again.reset(seed=49)
    assert again.solution == env.solution


def test_easy_tasks_have_one_step_and_clues_of_their_own() -> None:
    env = ClueLock(easy_share=0.5)
    easy, hard = set(), set()
    for seed in range(300):
        env.reset(seed=seed)
        (easy if len(env.sequence) == 1 else hard).update(env.sequence)
    assert easy == {0, 1, 2, 3}
    assert hard == set(range(4, 16))


def test_every_word_is_in_the_vocabulary() -> None:
    env, words = ClueLock(actions=64, steps=4), set(ClueLock.vocabulary)
    for seed in range(50):
        observation, info = env.reset(seed=seed)
        for action in list(env.solution):
            assert set(observation.split()) <= words
            assert set(info["admissible_actions"]) <= words
            assert action == info["expert_action"]
            observation, _, _, _, next_info = env.step(action)
            info = {**info, **next_info}
        assert observation == "open"


def test_registered_and_picklable_in_mid_episode() -> None:
    env = gymnasium.make("zoo/ClueLock-v0", disable_env_checker=True, steps=3).unwrapped
    env.reset(seed=3)
    env.step(env.solution[0])  # type: ignore[attr-defined]
    copy: Any = pickle.loads(pickle.dumps(env))  # noqa: S301 - made here
    assert copy.step(copy.solution[1]) == env.step(env.solution[1])  # type: ignore[attr-defined]


@pytest.mark.parametrize("wrong", [{"actions": 1}, {"steps": 9, "clues": 8}, {"steps": 0}, {"easy_share": 2.0}])
def test_impossible_locks_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="ClueLock"):
        ClueLock(**wrong)
    with pytest.raises(ValueError, match="split"):
        ClueLock().reset(seed=0, options={"split": "dev"})
