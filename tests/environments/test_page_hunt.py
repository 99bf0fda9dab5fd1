"""PageHunt: what a task asks, shows and rewards, and what its script knows."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.environments.page_hunt import PageHunt
from zoo.errors import ConfigError


def start(seed: int = 0, split: str = "train", **args: Any) -> tuple[PageHunt, str, dict[str, Any]]:
    env = PageHunt(**args)
    return env, *env.reset(seed=seed, options={"split": split})


def answer(env: PageHunt) -> str:
    return " ".join(["answer", *(f"k{env.keys[page]}:v{env.values[page]}" for page in env.needed)])


def test_a_page_tells_one_fact() -> None:
    env, asked, info = start(filler=2)
    page = env.needed[0]
    keys = sorted(env.keys[page] for page in env.needed)
    assert asked.startswith("hunt " + " ".join(f"k{key}" for key in keys) + " likely")
    words = env.step(f"p{page}")[0].split()
    assert words[:3] == [f"p{page}", "flag", f"k{env.keys[page]}:v{env.values[page]}"]  # a needed page is flagged
    assert len(words) == 5
    assert all(word.startswith("f") for word in words[3:])
    gold = [f"p{page}" for page in sorted(env.needed, key=lambda page: env.keys[page])]  # in the order of the question
    assert info == {"success": False, "gold": gold, "facts": len(env.needed)}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["train", "val", "test"]), st.sampled_from([0.0, 0.5, 1.0]))
def test_a_seed_and_a_split_make_the_task(seed: int, split: str, late: float) -> None:
    def play() -> list[Any]:
        env, asked, _ = start(seed, split, late=late, facts=(1, 4))
        return [asked, *(env.step(f"p{page}") for page in range(env.pages)), env.step(answer(env))]

    told = play()
    assert told == play()
    assert told[-1][:3] == ("right", 1.0, True)
    assert all(word in PageHunt.vocabulary for said in told[1:] for word in said[0].split())


def test_splits_ask_different_tasks() -> None:
    asked = [[start(seed, split)[1] for seed in range(200)] for split in ("train", "val", "test")]
    assert len({task for tasks in asked for task in tasks}) > 590
    with pytest.raises(ConfigError, match="split must be one of"):
        start(split="dev")


def test_all_facts_and_no_others_are_right() -> None:
    env = next(env for env, *_ in (start(seed) for seed in range(99)) if len(env.needed) == 3)
    facts = answer(env).split()[1:]
    other = f"{facts[2].partition(':')[0]}:v{(int(facts[2][-1]) + 1) % 6}"
    cases = {
        "": 0.0,
        " ".join(facts[:2]): 0.0,
        " ".join([*facts, facts[0]]): 0.0,
        f"{facts[0]} {facts[1]} {other}": 0.0,
    }
    cases |= {" ".join(facts): 1.0, " ".join(reversed(facts)): 1.0}
    for said, reward in cases.items():
        assert env.step(f"answer {said}")[1:3] == (reward, True), said


@pytest.mark.parametrize("action", ["", "p14", "p-1", "p", "p1 p2", "pages", "p999", "k1:v1"])
def test_what_is_no_page_costs_a_turn(action: str) -> None:
    assert start()[0].step(action)[:4] == ("nothing", 0.0, False, False)


def test_the_late_brief_names_pages_that_were_read() -> None:
    env, asked, info = start(late=1.0, reveal=3, brief=5, facts=(2, 2), filler=0)
    assert asked.startswith("hunt later likely")
    assert info["gold"] == []
    assert env.step("answer")[:2] == ("wrong", 0.0)  # nothing is asked for yet, so there is no answer
    env.reset(seed=0)
    told = [env.step(f"p{page}")[0] for page in (4, 4, 1, 6, 2)]
    assert ["need" in text.split() for text in told] == [False, False, False, True, False]  # three different ones
    assert set(env.needed) <= {4, 1, 6}
    assert not any("flag" in text for text in told)
    assert told[3].split()[8:] == ["need", *(f"k{key}" for key in sorted(env.keys[page] for page in env.needed))]
    assert env.step(answer(env))[1] == 1.0


def test_pages_look_alike_but_filler_changes() -> None:
    env, *_ = start()
    first, again = env.step("p3")[0].split(), env.step("p3")[0].split()
    assert first[:3] == again[:3]
    assert first != again


def test_hints_are_as_good_as_they_should_be() -> None:
    hits, false, flags = [], [], []
    for seed in range(600):
        env, asked, _ = start(seed)
        likely = {int(page[1:]) for page in asked.split("likely")[1].removesuffix("known").split()}
        hits += [page in likely for page in env.needed]
        others = [page for page in range(env.pages) if page not in env.needed]
        false += [page in likely for page in others]
        flags += [" flag " in env.step(f"p{page}")[0] for page in others]
    assert sum(hits) / len(hits) == pytest.approx(0.8, abs=0.04)
    assert sum(false) / len(false) == pytest.approx(0.3, abs=0.03)
    assert sum(flags) / len(flags) == pytest.approx(0.1, abs=0.02)


def test_the_script_answers_from_what_is_in_view() -> None:
    env, *_ = start()
    rng = random.Random(0)
    said = {env.script("hunt k1 k2 likely p4 p5 p4 plain k1:v3 f0", rng) for _ in range(50)}
    assert all(action.startswith("p") for action in said)
    assert {"p5"} < said  # what is likely and unread, and some others
    assert env.script("hunt k1 k2 likely p4 t0 p4 k1:v3 p5 plain k2:v0 f0", rng) == "answer k1:v3 k2:v0"
    late = "summary k1:v3 hunt later likely p4 <end> p5 plain k2:v0 f0 need k1"
    assert env.script(late, rng) == "answer k1:v3"
    assert env.note("p5 plain k2:v0 f0") == "k2:v0"
    assert env.note("nothing") == "nothing"
    assert env.digest("hunt k11 likely t0 p4 k11:v3 p5 plain k2:v0 k11:v3") == ["k2:v0", "k11:v3"]


def test_the_script_solves_every_task_it_sees_whole() -> None:
    for late in (0.0, 1.0):
        for seed in range(20):
            env, view, _ = start(seed, late=late)
            rng, done, reward = random.Random(seed), False, 0.0
            while not done:
                action = env.script(view, rng)
                observation, reward, done, *_ = env.step(action)
                view = f"{view} {action} <end> {observation}"
            assert reward == 1.0


@pytest.mark.parametrize("late", [0.0, 1.0])
def test_a_drill_tells_everything_at_once(late: float) -> None:
    env, asked, info = start(late=late, known=1.0)
    told = asked.split(" known ")[1].split(" need ")[0].split()
    assert sorted(told) == sorted(f"k{env.keys[page]}:v{env.values[page]}" for page in range(env.pages))
    assert sorted(info["gold"]) == sorted(f"p{page}" for page in env.needed)
    action = env.script(asked, random.Random(0))
    assert sorted(action.split()) == sorted(answer(env).split())
    assert env.step(action)[1] == 1.0


def test_a_pickled_world_goes_on_where_it_was() -> None:
    env, *_ = start()
    env.step("p3")
    copy = pickle.loads(pickle.dumps(env))  # noqa: S301 - made here
    assert env.step("p3") == copy.step("p3")


@pytest.mark.parametrize(
    "args",
    [{"facts": (0, 2)}, {"facts": (3, 2)}, {"pages": 99}, {"late": 1.0, "reveal": 20}, {"late": 2.0}, {"known": -1.0}],
)
def test_numbers_that_do_not_fit_are_refused(args: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="PageHunt"):
        PageHunt(**args)
