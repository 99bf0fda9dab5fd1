"""TextWorldExpress behind gymnasium: its own folds, its own solutions, one Java process."""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Iterator

import pytest

pytest.importorskip("textworld_express", reason="pip install 'agentic-zoo[worlds]'")
if shutil.which("java") is None:
    pytest.skip("needs a Java runtime", allow_module_level=True)

from datamodules.environments import textworld_express as module
from datamodules.environments.textworld_express import TextWorldExpress, WorldMissing, words

GAMES = [
    ("twc", "numLocations=1,numItemsToPutAway=2,includeDoors=0,limitInventorySize=0"),
    ("coin", "numLocations=5,numDistractorItems=0,includeDoors=1,limitInventorySize=0"),
]


@pytest.fixture(params=GAMES, ids=["twc", "coin"])
def env(request: pytest.FixtureRequest) -> Iterator[TextWorldExpress]:
    yield TextWorldExpress(*request.param, max_steps=40)


def test_the_gold_path_solves_every_fold(env: TextWorldExpress) -> None:
    for split in ("train", "val", "test"):
        for seed in range(10):
            _, info = env.reset(seed=seed, options={"split": split})
            assert ("action_data" in info) == (split == "train")
            total, terminated = 0.0, False
            for action in list(env._plan):
                assert not terminated
                assert info["expert_action"] == action
                assert action in info["admissible_actions"]
                _, reward, terminated, truncated, info = env.step(action)
                total += reward
                assert not truncated
            assert (total, terminated, info["success"], info["score"]) == (1.0, True, True, 1.0)


def test_a_task_is_its_seed_and_folds_differ(env: TextWorldExpress) -> None:
    other = TextWorldExpress(env.game, env.game_params, 40)
    starts = {}
    for split in ("train", "val", "test"):
        starts[split] = [env.reset(seed=seed, options={"split": split})[0] for seed in range(5)]
        assert starts[split] == [other.reset(seed=seed, options={"split": split})[0] for seed in range(5)]
    assert starts["train"] != starts["val"] != starts["test"]
    assert env.reset(seed=3) == other.reset(seed=3)


def test_solutions_of_coin_are_the_shortest() -> None:
    """Without doors a solution is moves and taking the coin, and no room is nearer to the goal than the solution says."""
    env = TextWorldExpress("coin", "numLocations=7,numDistractorItems=5,includeDoors=0,limitInventorySize=0", 40)
    for seed in range(15):
        observation, info = env.reset(seed=seed)
        plan, seen, rim = info["action_data"], {_room(observation)}, [[]]
        assert plan == env._solution(env._game("train", seed), "train")
        for length in range(1, len(plan) + 1):
            paths, rim = rim, []
            for path in paths:
                info = env.reset(seed=seed)[1]
                for action in path:
                    info = env.step(action)[4]
                assert length == len(plan) or "take coin" not in info["admissible_actions"]
                for action in sorted(info["admissible_actions"]):
                    if action.startswith("move "):
                        env.reset(seed=seed)
                        observation = [env.step(step)[0] for step in [*path, action]][-1]
                        if _room(observation) not in seen:
                            seen.add(_room(observation))
                            rim.append([*path, action])


def test_solutions_win_behind_doors_too_and_easy_games_can_be_left_out() -> None:
    env = TextWorldExpress("coin", "numLocations=7,numDistractorItems=10,includeDoors=1,limitInventorySize=0", 40, 4)
    starts = set()
    for seed in range(30):
        observation, info = env.reset(seed=seed)
        starts.add(observation)
        assert len(info["action_data"]) >= 4
        assert [env.step(action)[1] for action in info["action_data"]][-1] == 1.0
    assert len(starts) >= 28  # other games; some begin alike
    with pytest.raises(ValueError, match="no game of 30 actions"):
        TextWorldExpress("coin", "numLocations=2,numDistractorItems=0", 40, 30).reset(seed=0)


def _room(observation: str) -> str:
    return observation.split("you are in ")[1].split(" .")[0]


def test_a_useless_action_costs_a_step_and_the_limit_cuts(env: TextWorldExpress) -> None:
    short = TextWorldExpress(env.game, env.game_params, max_steps=3)
    short.reset(seed=0)
    ends = [short.step("sing a song") for _ in range(3)]
    assert [end[2:4] for end in ends] == [(False, False), (False, False), (False, True)]
    assert all(end[1] == 0.0 for end in ends)
    assert ends[0][0].endswith("turn 2")


def test_the_vocabulary_covers_random_walks(env: TextWorldExpress) -> None:
    known, rng = set(TextWorldExpress.vocabulary), random.Random(1)
    for seed in range(40):
        for split in ("train", "val", "test"):
            observation, info = env.reset(seed=500 + seed, options={"split": split})
            for _ in range(8):
                seen = {
                    *observation.split(),
                    *(word for action in info["admissible_actions"] for word in action.split()),
                }
                assert not {word for word in seen - known if not word.isdigit()}
                observation, _, terminated, _, info = env.step(rng.choice(info["admissible_actions"]))
                if terminated:
                    break


def test_the_place_of_an_action_says_nothing(env: TextWorldExpress) -> None:
    places = [
        (lambda info: info["admissible_actions"].index("look around") / len(info["admissible_actions"]))(
            env.reset(seed=seed)[1]
        )
        for seed in range(60)
    ]
    assert 0.3 < sum(places) / 60 < 0.7
    assert min(places) < 0.2
    assert max(places) > 0.6


def test_copies_go_on_where_the_original_is(env: TextWorldExpress) -> None:
    env.reset(seed=7, options={"split": "val"})
    for action in list(env._plan)[:2]:
        env.step(action)
    twin = copy.deepcopy(env)
    for action in list(env._plan)[2:]:
        assert twin.step(action) == env.step(action)


def test_many_games_share_one_java_process() -> None:
    games = [TextWorldExpress(*GAMES[0]) for _ in range(64)]
    first = [game.reset(seed=index)[0] for index, game in enumerate(games)]
    assert [TextWorldExpress(*GAMES[0]).reset(seed=index)[0] for index in range(8)] == first[:8]
    assert len(module._alive) == 1


def test_what_is_missing_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    module._engine.cache_clear()
    monkeypatch.setattr(module, "_alive", list(module._alive))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(WorldMissing, match=r"Java 8 or newer: install"):
        TextWorldExpress()
    monkeypatch.undo()
    with pytest.raises(ValueError, match="does not take game='chess'"):
        TextWorldExpress("chess")


def test_words_keeps_everything() -> None:
    assert words("You see\n a T-shirt, that's  wet.") == "you see a t-shirt , that's wet ."
