"""Household: what is possible, what is told and withheld, what each kind of task keeps apart, and what the expert does."""

from __future__ import annotations

import copy
import pickle
import random
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.environments.household import (
    CLOSED,
    FAMILIES,
    HELD_OUT_PAIRS,
    OBJECT_TYPES,
    PAIRS,
    PLACE_TYPES,
    RENAMED,
    STORAGE,
    TREATMENTS,
    Household,
)
from zoo.errors import ConfigError

KINDS = ("none", "layouts", "pairs", "names")  # of tasks that methods are compared on
VERBS = ("take", "put", "clean", "heat", "cool")

tasks = st.tuples(
    st.integers(0, 10**6),
    st.sampled_from(["train", "val", "test"]),
    st.sampled_from(KINDS),
    st.sampled_from(list(FAMILIES)),
)


def start(seed: int = 0, split: str = "train", **args: Any) -> tuple[Household, str, dict[str, Any]]:
    env = Household(**args)
    return env, *env.reset(seed=seed, options={"split": split})


def wander(task: tuple[int, str, str, str], steps: int) -> tuple[Household, dict[str, Any]]:
    """A state that is met by one who follows the expert half of the time; a new start if the task gets solved."""
    seed, split, unseen, family = task
    env, _, info = start(seed, split, unseen=unseen, families=[family])
    rng = random.Random(seed)
    for _ in range(steps):
        action = info["expert_action"] if rng.random() < 0.5 else rng.choice(info["admissible_actions"])
        *_, over, _, info = env.step(action)
        if over:
            _, info = env.reset(seed=seed, options={"split": split})
    return env, info


def state(env: Household) -> list[Any]:
    return copy.deepcopy([env.at, env.held, env.where, env.marks, env.opened, env.seen])


def after(env: Household, action: str) -> Household:
    twin: Household = pickle.loads(pickle.dumps(env))  # noqa: S301 - made here
    twin.step(action)
    return twin


def asked(env: Household) -> tuple[str, str]:
    """The thing and the type of place of the goal, in ordinary words."""
    ordinary = {other: word for word, other in RENAMED.items()}
    thing, target = env.goal.split()[-2:]
    return ordinary.get(thing, thing), ordinary.get(target, target)


# -- by hand -------------------------------------------------------------------------------------------------------------


def test_an_episode_by_hand() -> None:
    env, told, info = start(0, families=["heat"])
    places = "cabinet1 drawer1 drawer2 counter1 shelf1 shelf2 sink1 microwave1 fridge1 lamp1"
    assert told == f"task put hot tomato drawer places {places} at microwave1 closed holding nothing ."
    assert info == {
        "success": False,
        "family": "heat",
        "admissible_actions": sorted(
            [*(f"go {p}" for p in places.split() if p != "microwave1"), "look", "open microwave1"]
        ),
        "roles": {"tomato": "target", "drawer1": "destination", "drawer2": "destination", "microwave1": "station"},
        "expert_action": "go fridge1",  # tomatoes lie on tables, of which there is none, in fridges, on shelves
        "action_data": [
            *("go fridge1", "open fridge1", "go shelf1", "take tomato shelf1", "go microwave1", "open microwave1"),
            *("heat tomato microwave1", "go drawer1", "open drawer1", "put tomato drawer1"),
        ],
    }
    assert env.distance() == 8  # go, take; go, open, heat; go, open, put
    for action, said, distance in [
        ("look", "at microwave1 closed holding nothing .", 8),
        ("take tomato shelf1", "nothing happens .", 8),
        ("go shelf1", "at shelf1 open sees mug tomato holding nothing .", 7),
        ("take mug shelf1", "at shelf1 open sees tomato holding mug .", 8),  # it must be put down again
        ("take tomato shelf1", "nothing happens .", 8),
        ("put mug shelf1", "at shelf1 open sees mug tomato holding nothing .", 7),
        ("take tomato shelf1", "at shelf1 open sees mug holding tomato .", 6),
        ("go sink1", "at sink1 open sees nothing holding tomato .", 6),
        ("clean tomato sink1", "at sink1 open sees nothing holding tomato clean .", 6),
        ("clean tomato sink1", "nothing happens .", 6),
        ("go microwave1", "at microwave1 closed holding tomato clean .", 5),
        ("heat tomato microwave1", "nothing happens .", 5),  # it is closed
        ("open microwave1", "at microwave1 open sees nothing holding tomato clean .", 4),
        (" heat  tomato microwave1", "at microwave1 open sees nothing holding tomato hot .", 3),
        ("go drawer2", "at drawer2 closed holding tomato hot .", 2),
        ("put tomato drawer2", "nothing happens .", 2),
        ("open drawer2", "at drawer2 open sees nothing holding tomato hot .", 1),
    ]:
        observation, reward, terminated, truncated, info = env.step(action)
        assert (observation, reward, terminated, truncated) == (said, 0.0, False, False), action
        assert (env.distance(), info["success"]) == (distance, False), action
    observation, reward, terminated, truncated, info = env.step("put tomato drawer2")
    assert (observation, reward) == ("at drawer2 open sees tomato hot holding nothing .", 1.0)
    assert (terminated, truncated, info["success"], info["expert_action"]) == (True, False, True, "")
    assert env.distance() == 0


def test_two_things_by_hand() -> None:
    env, told, _ = start(0, families=["two"])
    assert told.startswith("task put two tomato drawer places ")
    # One tomato lies on each shelf: go, take, go, open, put; go, take, go, put.
    assert env.distance() == 9
    for action, distance in [("go shelf2", 8), ("take tomato shelf2", 7), ("go shelf1", 7)]:
        env.step(action)
        assert env.distance() == distance
    # Both lie on shelf1 now: take, go, open, put; go, take, go, put.
    assert env.step("put tomato shelf1")[0] == "at shelf1 open sees mug tomato tomato holding nothing ."
    assert env.distance() == 8


def test_looking_under_the_lamp_by_hand() -> None:
    env, told, info = start(0, families=["look"])
    assert told.startswith("task look tomato lamp places ")
    assert env.distance() == 4
    assert info["action_data"][-3:] == ["take tomato shelf2", "go lamp1", "use lamp1"]
    for action in ["go shelf1", "take mug shelf1", "go lamp1"]:
        *_, info = env.step(action)
    assert "put mug lamp1" not in info["admissible_actions"]
    assert env.step("use lamp1")[:2] == ("at lamp1 open sees nothing holding mug lit .", 0.0)  # not what was asked for
    assert env.step("use lamp1")[0] == "nothing happens ."
    for action in ["go shelf2", "put mug shelf2", "take tomato shelf2", "go lamp1"]:
        env.step(action)
    assert env.distance() == 1
    assert env.step("use lamp1")[:3] == ("at lamp1 open sees nothing holding tomato lit .", 1.0, True)


# -- what is possible ----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(tasks, st.integers(0, 25))
def test_a_command_is_admissible_if_and_only_if_it_has_an_effect(task: tuple[int, str, str, str], steps: int) -> None:
    env, info = wander(task, steps)
    admissible, before = info["admissible_actions"], state(env)
    assert admissible == sorted(set(admissible))
    assert 5 <= len(admissible) <= 20
    assert info["expert_action"] in admissible
    for action in admissible:
        twin = copy.deepcopy(env)
        assert not twin.step(action)[0].startswith("nothing happens")
        assert (state(twin) != before) == (action != "look"), action
    names = {*OBJECT_TYPES, *RENAMED.values(), *STORAGE}
    grammar = {
        *(f"{verb} {place}" for verb, place in product(("go", "open", "use", "close"), env.places)),
        *(f"{verb} {thing} {place}" for verb, thing, place in product(VERBS, names, env.places)),
        *("", "gibberish", "go", "go nowhere", "take", "put mug", "look look", "LOOK", "use lamp", "open fridge"),
        *(f"{action} ." for action in admissible),
    }
    for action in sorted(grammar - set(admissible)):
        observation, reward, terminated, truncated, told = env.step(action)
        assert (observation, reward, terminated, truncated) == ("nothing happens .", 0.0, False, False), action
        assert state(env) == before, action
        assert told == {key: value for key, value in info.items() if key not in ("action_data", "roles")}, action


@settings(max_examples=80, deadline=None)
@given(tasks, st.integers(0, 25))
def test_distance_is_the_cost_of_the_best_plan(task: tuple[int, str, str, str], steps: int) -> None:
    """Bellman's equation holds in every state, so what is counted is what a search would find."""
    env, info = wander(task, steps)
    while not env.solved():
        distances = {action: after(env, action).distance() for action in info["admissible_actions"]}
        assert min(distances.values()) == env.distance() - 1 >= 0
        *_, info = env.step(min(distances, key=lambda action: distances[action]))
    assert env.distance() == 0


def test_what_info_lists_can_be_changed_without_harm() -> None:
    env, _, info = start()
    kept = list(info["admissible_actions"])
    info["admissible_actions"].clear()
    assert env.step("gibberish")[-1]["admissible_actions"] == kept


# -- what is told --------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(tasks)
def test_a_seed_and_a_split_make_the_task(task: tuple[int, str, str, str]) -> None:
    seed, split, unseen, family = task

    def play() -> list[Any]:
        env, told, info = start(seed, split, unseen=unseen, families=[family])
        rng, said = random.Random(seed), [(told, info)]
        for _ in range(20):
            said.append(env.step(rng.choice(said[-1][1]["admissible_actions"]))[::4])
        return said

    played = play()
    assert played == play()
    begins = {command.split()[0] for _, info in played for command in info["admissible_actions"]}
    for said, info in played:
        assert set(said.split()) <= set(Household.vocabulary)
        assert {word for action in info["admissible_actions"] for word in action.split()} <= set(Household.vocabulary)
        assert said.split()[-1] not in begins
        assert len(said.split()) <= (30 if said.startswith("task") else 20)
    assert ("action_data" in played[0][1]) == (split == "train")


def test_the_vocabulary_is_small_and_each_word_is_there_once() -> None:
    assert len(set(Household.vocabulary)) == len(Household.vocabulary) < 220


@settings(max_examples=60, deadline=None)
@given(tasks, st.integers(0, 12))
def test_the_expert_knows_only_what_was_seen(task: tuple[int, str, str, str], steps: int) -> None:
    env, info = wander(task, steps)
    unseen = [n for n, kind in enumerate(env.kinds) if n not in env.seen and kind not in ("lamp", asked(env)[1])]
    for place in unseen:
        twin = copy.deepcopy(env)
        twin.where = [place if where in unseen else where for where in env.where]  # whatever is hidden lies here
        told = twin.step("look")[-1]
        assert told == env.step("look")[-1]
        assert told["expert_action"] == info["expert_action"]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 20))
def test_every_errand_gets_done_by_its_commands(seed: int, steps: int) -> None:
    """From any state: an errand of the list takes at most three commands, each possible, and does what its words say."""
    env, _, info = start(seed)
    rng = random.Random(seed)
    for _ in range(steps):
        _, _, ended, _, info = env.step(rng.choice(info["admissible_actions"]))
        if ended:
            _, info = env.reset(seed=seed)
    assert env.errand() in env.errands() or env.errand()[0] == "put"  # to where one stands, to get a hand free
    verb, thing, place = rng.choice(env.errands())
    for _ in range(3):
        command = env.command((verb, thing, place))
        marked = env.held is not None and env.marks[env.held] == TREATMENTS.get(env.kinds[place], ("", "?"))[1]
        if marked and command.split()[0] == verb:
            return  # as clean, hot or cold as it can be
        assert command in info["admissible_actions"]
        _, _, ended, _, info = env.step(command)
        if ended or command == "look" or command.split()[0] == verb:
            break
        if verb == "find" and place in env.seen:
            return
    assert command.split()[0] == verb
    assert env.at == place


# -- the expert ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unseen", KINDS)
def test_the_expert_solves_every_task(unseen: str) -> None:
    lengths, choices = [], []
    for family, seed in product(FAMILIES, range(120)):
        split = ("train", "val", "test")[seed % 3]
        env, _, info = start(seed, split, unseen=unseen, families=[family])
        known, done, best = info.get("action_data"), [], env.distance()
        assert 4 <= best <= 12
        while action := info["expert_action"]:
            choices.append(len(info["admissible_actions"]))
            _, reward, terminated, _, info = env.step(action)
            done.append(action)
            assert (reward, terminated) == (float(info["success"]), info["success"])
        assert info["success"]
        assert known in (None, done)
        assert best <= len(done) <= 30
        lengths.append(len(done))
    assert 4 <= sum(lengths) / len(lengths) <= 12
    assert sum(length <= 14 for length in lengths) / len(lengths) > 0.9
    assert 5 <= sum(choices) / len(choices) <= 15


@settings(max_examples=80, deadline=None)
@given(tasks, st.integers(0, 25))
def test_the_expert_goes_on_from_anywhere(task: tuple[int, str, str, str], steps: int) -> None:
    env, info = wander(task, steps)
    for _ in range(30):
        if not info["expert_action"]:
            break
        *_, info = env.step(info["expert_action"])
    assert info["success"]


@settings(max_examples=60, deadline=None)
@given(tasks)
def test_an_expert_that_has_seen_everything_takes_a_shortest_way(task: tuple[int, str, str, str]) -> None:
    env, _ = wander(task, 0)
    env.seen = set(range(len(env.places)))
    *_, info = env.step("look")
    while action := info["expert_action"]:
        left = env.distance()
        *_, info = env.step(action)
        assert env.distance() == left - 1


# -- kinds of tasks ------------------------------------------------------------------------------------------------------


def many(count: int, **args: Any) -> list[tuple[Household, str]]:
    """Tasks of every split, as they start."""
    env, drawn = Household(**args), []
    for split, seed in product(("train", "val", "test"), range(count)):
        told, _ = env.reset(seed=seed, options={"split": split})
        drawn.append((copy.copy(env), told))  # a new task takes nothing over from the last one
    return drawn


@pytest.mark.parametrize("unseen", KINDS)
def test_splits_share_no_task(unseen: str) -> None:
    drawn = many(300, unseen=unseen)
    assert len({(told, *env.things, *env.where) for env, told in drawn}) == len(drawn)
    with pytest.raises(ConfigError, match="split must be one of"):
        start(split="dev")


def test_layouts_of_training_and_unseen_ones_are_disjoint() -> None:
    seen = {kind: {env.kinds for env, _ in many(300, unseen=kind)} for kind in KINDS}
    assert len(seen["none"]) == 64
    assert not seen["none"] & seen["layouts"]
    assert len(seen["layouts"]) > 64
    assert seen["pairs"] == seen["names"] == seen["none"]  # only one thing is new at a time
    assert len({env.kinds for env, _ in many(50, layouts=3)}) == 3
    widest = {env.kinds for env, _ in many(500, layouts=200)}
    assert len(widest) > 190
    assert not widest & seen["layouts"]
    spare = {env.kinds for env, _ in many(300, unseen="spare")}
    assert len(spare) > 100
    assert not spare & (seen["none"] | seen["layouts"])
    for kinds in seen["none"] | seen["layouts"] | spare:
        assert 8 <= len(kinds) <= 10
        assert set(kinds) <= set(PLACE_TYPES)


def test_held_out_pairs_are_asked_for_by_their_own_tasks_alone() -> None:
    asks = {kind: {asked(env) for env, _ in many(300, unseen=kind)} for kind in KINDS}
    assert asks["none"] == asks["layouts"] == asks["names"] == set(PAIRS) - set(HELD_OUT_PAIRS)
    assert asks["pairs"] == set(HELD_OUT_PAIRS)
    assert 0.15 <= len(HELD_OUT_PAIRS) / len(PAIRS) <= 0.25
    trained = asks["none"]
    assert all(sum(pair[0] == thing for pair in trained) >= 6 for thing in OBJECT_TYPES)
    assert all(sum(pair[1] == target for pair in trained) >= 6 for target in PLACE_TYPES)


def test_other_names_share_no_word_for_things_and_storage_and_cool_where_others_heat() -> None:
    drawn = many(200, unseen="names")
    words = {word for env, told in drawn for word in [*told.split(), *env.things]}
    assert not {word.rstrip("123") for word in words} & set(RENAMED)
    assert set(RENAMED.values()) <= {word.rstrip("123") for word in words}
    assert {env.family for env, _ in drawn} == set(FAMILIES) - {"heat"}
    _, told, info = start(0, unseen="names", families=["heat"])
    assert info["family"] == "cool"
    assert told.startswith("task put cold ")


def test_families_are_as_likely_as_each_other_and_can_be_chosen() -> None:
    drawn = [env.family for env, _ in many(400)]
    assert all(drawn.count(family) / len(drawn) == pytest.approx(1 / 6, abs=0.04) for family in FAMILIES)
    assert {env.family for env, _ in many(30, families=["clean", "two"])} == {"clean", "two"}


@pytest.mark.parametrize("unseen", KINDS)
def test_no_task_is_half_done_at_the_start(unseen: str) -> None:
    for env, told in many(200, unseen=unseen):
        thing, target = told.split(" places ")[0].split()[-2:]
        for name, where in zip(env.things, env.where, strict=True):
            assert name != thing or env.places[where].rstrip("123") != target
            assert name != thing or where != env.at
            assert env.kinds[where] != "lamp"
        assert env.things.count(thing) == 1 + (env.family == "two")
        assert env.opened == {n for n, kind in enumerate(env.kinds) if kind not in CLOSED}


def test_a_pickled_world_goes_on_where_it_was() -> None:
    env, _, info = start()
    for _ in range(4):
        *_, info = env.step(info["expert_action"])
    twin = pickle.loads(pickle.dumps(env))  # noqa: S301 - made here
    while action := info["expert_action"]:
        told = env.step(action)
        assert told == twin.step(action)
        info = told[-1]
    assert env.solved()
    assert twin.solved()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"unseen": "rooms"}, "unseen must be one of .*'rooms'"),
        ({"families": ["place", "slice"]}, "families must be a list of some of .*'slice'"),
        ({"families": []}, "families must be a list"),
        ({"families": "place"}, "families must be a list"),
        ({"layouts": 0}, "layouts must be 1 to 200, not 0"),
        ({"layouts": 201}, "layouts must be 1 to 200, not 201"),
    ],
)
def test_arguments_that_are_none_are_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"Household: {message}"):
        Household(**args)
