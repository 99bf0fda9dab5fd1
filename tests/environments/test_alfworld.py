"""ALFWorld: the package's engine to the letter, scenes apart by split and room, experts that win, and its data set's layout."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import gymnasium
import pytest

pytest.importorskip("alfworld", reason="pip install 'agentic-zoo[alfworld]'")

from datamodules import environments
from datamodules.environments import alfworld_package
from datamodules.environments.alfworld import WORDS, ALFWorld, Texts, _collect_words
from datamodules.environments.alfworld_engine import Play, ground
from datamodules.environments.alfworld_scenes import FAMILIES, ROOMS, layouts
from datamodules.rollouts import RolloutDataModule
from zoo.errors import ConfigError

SPLITS = ("train", "val", "test")


def texts(family: str, seed: int = 0) -> Texts:
    return ALFWorld((family,))._texts("train", seed)


def follow(env: ALFWorld, seed: int, split: str) -> list[str]:
    """What the expert does until it has won."""
    _, info = env.reset(seed=seed, options={"split": split})
    total, done, actions = 0.0, False, []
    while not done:
        assert info["expert_action"] in info["admissible_actions"]
        actions.append(info["expert_action"])
        _, reward, done, truncated, info = env.step(actions[-1])
        assert not truncated
        total += reward
    assert (total, info["success"], info["expert_action"]) == (1.0, True, None)
    return actions


def theirs(game: Texts) -> Any:
    """The same game behind the package's own classes."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs import PddlEnv

    env = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
    env.load({"pddl_domain": game.domain, "grammar": game.grammar, "pddl_problem": game.problem})
    return env


def side_by_side(game: Texts, steps: int) -> None:
    """A walk that handles things wherever it can; both engines are to say and offer the same."""
    arguments = sys.argv
    play, env, rng = Play(ground(*game[:3])), theirs(game), random.Random(0)
    sys.argv = arguments  # the package leaves its own behind
    state = env.reset()
    assert play.intro == state.feedback
    for _ in range(steps):
        assert (play.commands, play.won) == (state.admissible_commands, state["won"])
        handling = [command for command in play.commands if command.split()[0] not in {"go", "help", "examine"}]
        command = rng.choice(rng.choice([handling, play.commands, ["open sesame"]]))
        answer = play.step(command)
        state, _, _ = env.step(command)
        assert answer == state.feedback, command


@pytest.mark.parametrize("family", FAMILIES[::2])
def test_the_engine_is_the_packages_to_the_letter(family: str) -> None:
    side_by_side(texts(family), 12)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_is_the_packages_over_long_walks(family: str) -> None:
    for seed in range(1, 3):
        side_by_side(texts(family, seed), 60)


def test_what_the_engine_says() -> None:
    env = ALFWorld(("pick_heat_then_place_in_recep",))
    observation, info = env.reset(seed=3)
    assert observation.startswith(
        "you are in the middle of a room . looking quickly around you , you see a cabinet 6 ,"
    )
    assert observation.endswith(", and a toaster 1 . your task is to : heat some apple and put it in sidetable .")
    assert info["family"] == "pick_heat_then_place_in_recep"
    assert {"look", "inventory", "go to fridge 1"} <= set(info["admissible_actions"])
    assert env.step("go to fridge 1")[0] == "you arrive at fridge 1 . the fridge 1 is closed ."
    for unknown in ("go to fridge 1", "take mug 9 from fridge 1", "sing", ""):
        answer, reward, terminated, truncated, info = env.step(unknown)
        assert (answer, reward, terminated, truncated, info["success"]) == (
            "nothing happens .",
            0.0,
            False,
            False,
            False,
        )
    assert env.step("open fridge 1")[0].startswith("you open the fridge 1 . the fridge 1 is open . in it , you see")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("unseen", [False, True])
def test_the_hand_coded_expert_wins_every_family(family: str, unseen: bool) -> None:
    env = ALFWorld((family,), unseen, max_steps=100)
    for seed in range(3):
        assert len(follow(env, seed, "test")) >= 3


def test_what_it_would_do_is_told_for_training_only() -> None:
    env = ALFWorld(max_steps=100)
    for seed in range(4):
        assert env.reset(seed=seed)[1]["action_data"] == follow(env, seed, "train")
    assert "action_data" not in env.reset(seed=0, options={"split": "val"})[1]


def test_roles_are_those_of_the_task() -> None:
    env = ALFWorld()
    told = {}
    for seed in range(40):
        text, info = env.reset(seed=seed)
        assert all(
            word in text.partition("your task is")[2].replace(" ", "")
            for word, role in info["roles"].items()
            if role == "target"
        )
        told.setdefault(info["family"], sorted(info["roles"].values()))
    assert told["pick_and_place_simple"] == ["destination", "target"]
    assert told["pick_heat_then_place_in_recep"] == ["destination", "station", "target"]
    assert told["look_at_obj_in_light"] == ["station", "target"]
    assert "roles" not in env.step("look")[-1]


def test_the_planner_goes_straight_and_games_of_several_do_not_mix() -> None:
    one, other = (ALFWorld((family,), expert="planner") for family in FAMILIES[1:3])
    here, there = one.reset(seed=0)[1], other.reset(seed=0)[1]
    plans, arguments = (here["action_data"], there["action_data"]), list(sys.argv)
    assert max(map(len, plans)) <= 9
    for own, others in zip(*plans, strict=False):
        assert (here["expert_action"], there["expert_action"]) == (own, others)
        here, there = one.step(own)[4], other.step(others)[4]
    assert here["success"] or there["success"]
    assert sys.argv == arguments


def test_a_game_is_its_split_and_seed_and_splits_share_none() -> None:
    env, other, games = ALFWorld(), ALFWorld(), defaultdict(set)
    for split in SPLITS:
        for seed in range(150):
            games[split].add(env._texts(split, seed))
        assert len(games[split]) == 150
    assert not games["train"] & games["val"] and not games["test"] & (games["train"] | games["val"])
    played = []
    for each in (env, other):
        observation, info = each.reset(seed=7, options={"split": "val"})
        played.append([(observation, info), *(each.step(action) for action in ("look", "inventory", "help"))])
    assert played[0] == played[1]


def test_held_out_rooms_are_none_of_those_trained_in() -> None:
    rooms: dict[tuple[bool, str], set[Any]] = defaultdict(set)
    for unseen in (False, True):
        env = ALFWorld(unseen=unseen)
        for split in SPLITS:
            for seed in range(150):
                game = env._texts(split, seed)
                # The facts about receptacles are what a room is.
                facts = [line for line in game.problem.split("\n") if "(receptacleType" in line and "?" not in line]
                rooms[unseen, split].add(tuple(facts))
    assert rooms[False, "train"] == rooms[True, "train"]  # the same games
    trained = rooms[False, "train"] | rooms[False, "val"] | rooms[False, "test"]
    held_out = rooms[True, "val"] | rooms[True, "test"]
    assert not held_out & trained
    assert len(held_out) == 4 * 6 and 80 < len(trained) <= 4 * 24
    assert all(len(set(layouts(room).values())) == 30 for room in ROOMS)


def test_families_can_be_chosen() -> None:
    env, chosen = ALFWorld(FAMILIES[:2]), set()
    for seed in range(12):
        chosen.add(json.loads(env._texts("test", seed).parameters)["task_type"])
    assert chosen == set(FAMILIES[:2])


def test_every_word_is_in_the_vocabulary() -> None:
    assert set(WORDS.read_text().split()) == _collect_words()
    known, env, rng = set(ALFWorld.vocabulary), ALFWorld(), random.Random(0)
    for seed in range(40):
        observation, info = env.reset(seed=seed, options={"split": SPLITS[seed % 3]})
        for _ in range(12):
            assert {word for text in (observation, *info["admissible_actions"]) for word in text.split()} <= known
            handling = [action for action in info["admissible_actions"] if not action.startswith(("go", "examine"))]
            action = rng.choice([info["expert_action"] or "help", rng.choice(handling)])
            observation, _, _, _, info = env.step(action)
    assert set(env.step("help")[0].split()) <= known
    data = RolloutDataModule(environment="zoo/ALFWorld-v0")
    assert known <= set(data.vocabulary)


def test_the_place_of_an_action_says_nothing() -> None:
    env, places = ALFWorld(), []
    for seed in range(20):
        actions = env.reset(seed=seed, options={"split": "val"})[1]["admissible_actions"]
        places.append(actions.index("look") / len(actions))
    assert min(places) < 0.25 and max(places) > 0.75 and len(set(places)) > 10


def test_copies_go_on_where_the_original_is() -> None:
    env = ALFWorld(max_steps=4)
    env.reset(seed=5, options={"split": "val"})
    env.step("look")
    before, twin = random.getstate(), copy.deepcopy(env)
    ends = [twin.step(action) for action in ("inventory", "jump", "look")]
    assert ends == [env.step(action) for action in ("inventory", "jump", "look")]
    assert [end[3] for end in ends] == [False, False, True]  # the limit cuts
    assert random.getstate() == before  # the expert's draws are its own


def test_an_expert_that_is_not_followed_keeps_advising() -> None:
    env, rng = ALFWorld(max_steps=300), random.Random(1)
    for seed in range(8):
        _, info = env.reset(seed=seed, options={"split": "val"})
        for _ in range(25):
            info = env.step(rng.choice([*info["admissible_actions"], "dance"]))[4]
            assert (
                info["success"] or info["expert_action"] is None or info["expert_action"] in info["admissible_actions"]
            )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set of one training game, two seen ones, of which one speaks as older data sets do, and one unseen."""
    places = (("train", 0), ("valid_seen", 1), ("valid_seen", 2), ("valid_unseen", 3))
    for name, seed in places:
        game = texts(FAMILIES[seed], seed)
        task = json.loads(game.parameters)
        home = tmp_path / name / f"{task['task_type']}-{task['object_target']}-None-Shelf-1" / f"trial_{seed}"
        home.mkdir(parents=True)
        grammar = game.grammar.replace("move {o} to {r}", "put {o} in/on {r}") if seed == 2 else game.grammar
        content = {"pddl_domain": game.domain, "grammar": grammar, "pddl_problem": game.problem, "solvable": True}
        (home / "game.tw-pddl").write_text(json.dumps(content))
        (home / "traj_data.json").write_text(json.dumps({"task_type": task["task_type"], "pddl_params": task}))
    return tmp_path


def test_the_data_set_is_played_in_its_order(folder: Path) -> None:
    seen, unseen = ALFWorld(data=str(folder)), ALFWorld(data=str(folder), unseen=True)
    families = [
        [seen.reset(seed=seed, options={"split": split})[1]["family"] for seed in (0, 1, 2)] for split in SPLITS
    ]
    assert families[0] == [FAMILIES[0]] * 3
    assert families[1] == families[2] == [FAMILIES[1], FAMILIES[2], FAMILIES[1]]
    assert unseen.reset(seed=9, options={"split": "test"})[1]["family"] == FAMILIES[3]
    same, info = seen.reset(seed=0)
    assert (same, info["action_data"]) == (lambda told: (told[0], told[1]["action_data"]))(
        ALFWorld(FAMILIES[:1]).reset(seed=0)
    )
    for env, seed in ((seen, 0), (seen, 1), (unseen, 0)):
        actions = follow(env, seed, "val")
    older = follow(seen, 1, "val")
    assert older[-1].startswith("put ") and " in / on " in older[-1]
    assert {word for action in (*actions, *older) for word in action.split()} <= set(ALFWorld.vocabulary)


def test_a_folder_that_is_not_the_data_set_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"data='nowhere' has no games .* give the folder with `train`"):
        ALFWorld(data="nowhere")
    with pytest.raises(ConfigError, match=r"has no games of \['pick_two_obj_and_place'\]"):
        ALFWorld(FAMILIES[-1:], data=str(folder))
    game = next((folder / "train").glob("*/*/game.tw-pddl"))
    game.with_name("traj_data.json").write_text("{}")
    with pytest.raises(ConfigError, match="has no 'pddl_params'"):
        ALFWorld(data=str(folder)).reset(seed=0)
    for content, said in (("<html>", "game.tw-pddl cannot be read"), ('{"solvable": false}', "marked as solvable")):
        game.write_text(content)
        folder = folder.rename(folder.with_name(f"{folder.name}-"))  # what was read once is remembered
        game = next((folder / "train").glob("*/*/game.tw-pddl"))
        with pytest.raises(ConfigError, match=said):
            ALFWorld(data=str(folder)).reset(seed=0)


@pytest.mark.parametrize(
    "wrong", [{"families": ["cook"]}, {"families": []}, {"families": FAMILIES[0]}, {"expert": "me"}, {"max_steps": 0}]
)
def test_what_cannot_be_is_said_in_one_line(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"ALFWorld: {next(iter(wrong))} must be"):
        ALFWorld(**wrong)
    with pytest.raises(ConfigError, match="split must be one of"):
        ALFWorld().reset(seed=0, options={"split": "dev"})


def test_a_grammar_is_never_run_as_code() -> None:
    game = texts(FAMILIES[0])
    wicked = game.grammar.replace("{r.indefinite} {r.name or r.id}", "{__import__('os').getcwd()}")
    assert wicked != game.grammar
    with pytest.raises(ConfigError, match="not understood"):
        _ = Play(ground(game.domain, wicked, game.problem)).intro


def test_a_missing_package_is_said_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "alfworld.gen.constants", None)  # as if it were not there
    alfworld_package.parts.cache_clear()
    with pytest.raises(ConfigError, match=r"ALFWorld needs alfworld.*: pip install 'agentic-zoo\[alfworld\]'"):
        gymnasium.make("zoo/ALFWorld-v0")
    monkeypatch.undo()
    alfworld_package.parts.cache_clear()


def test_worlds_are_registered_without_the_package() -> None:
    check = "import runpy, sys; runpy.run_path(sys.argv[1]); assert not {'alfworld', 'textworld'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check, environments.__file__], check=True)
