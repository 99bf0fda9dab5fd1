"""PageHunt: facts are scattered over pages, and more must be read than a small context holds.

The task that ECHO's claims need (dossier 6.1): the raw window holds about four pages, pages can be opened again but an agent
that no longer sees a page cannot know that it has read it, most pages are distractors, and an answer is right only if every
fact is. Every text is a few words of a small vocabulary.
"""

from __future__ import annotations

import random
import re
from string import printable
from typing import Any, ClassVar

import gymnasium
from gymnasium import spaces

from zoo.errors import ConfigError

MAX_PAGES, KEYS, VALUES, FILLERS = 16, 16, 12, 8
_SPLITS = ("train", "val", "test")


class PageHunt(gymnasium.Env[str, str]):
    """Open pages (``p3``), then say the facts asked for (``answer k4:v2 k9:v7``). Reward 1 if all are right and no more.

    A page holds one fact, a key with its value in one word, and filler. Task, keys and values are drawn by seed and split;
    nothing is shared between tasks but the language, so an answer must have been read.

    Args:
        pages: how many there are; each holds another key.
        facts: smallest and largest number of keys asked for.
        late: share of the tasks in which keys are asked for only when ``reveal`` different pages have been opened, among those
            pages, by a long brief; before that nothing tells which facts matter. Otherwise the first observation tells.
        reveal: see ``late``.
        filler: filler words of a page.
        brief: filler words of the brief.
        cue: chance that a needed page is listed as likely at the start.
        false_cue: the same for any other page.
        known: share of the tasks that tell every fact at the start; drills, for warm starts.

    Raises:
        ConfigError: numbers that do not fit together.
    """

    vocabulary: ClassVar[tuple[str, ...]] = (
        *("hunt", "likely", "later", "need", "answer", "right", "wrong", "nothing"),
        *("flag", "plain", "known"),
        *(f"p{page}" for page in range(MAX_PAGES)),
        *(f"k{key}" for key in range(KEYS)),
        *(f"k{key}:v{value}" for key in range(KEYS) for value in range(VALUES)),
        *(f"f{filler}" for filler in range(FILLERS)),
    )

    def __init__(
        self,
        pages: int = 14,
        facts: tuple[int, int] = (1, 4),
        late: float = 0.0,
        reveal: int = 8,
        filler: int = 9,
        brief: int = 24,
        cue: float = 0.8,
        false_cue: float = 0.3,
        known: float = 0.0,
    ) -> None:
        if not (0 <= late <= 1 and 0 <= known <= 1):
            raise ConfigError(f"PageHunt: late and known are shares between 0 and 1, not {late} and {known}")
        if not 1 <= facts[0] <= facts[1] <= (reveal if late else pages) <= pages <= MAX_PAGES:
            raise ConfigError(
                f"PageHunt needs 1 <= facts <= pages <= {MAX_PAGES}, and facts <= reveal <= pages if late"
            )
        self.pages, self.facts, self.late, self.reveal = pages, (facts[0], facts[1]), late, reveal
        self.filler, self.brief, self.cue, self.false_cue, self.known = filler, brief, cue, false_cue, known
        self.observation_space, self.action_space = (
            spaces.Text(1024, charset=printable),
            spaces.Text(64, charset=printable),
        )
        self.opened: list[int] = []
        self.needed: list[int] = []  # pages

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the task that ``seed`` names.

        Args:
            seed: the task; ``None`` draws one.
            options: ``{"split": "train" | "val" | "test"}``; ``train`` if absent.
        """
        super().reset(seed=seed)
        split = (options or {}).get("split", "train")
        if split not in _SPLITS:
            raise ConfigError(f"PageHunt: split must be one of {_SPLITS}, not {split!r}")
        number = seed if seed is not None else int(self.np_random.integers(2**31))
        rng = random.Random(f"{split} {number}")
        self.keys = rng.sample(range(KEYS), self.pages)
        self.values = [rng.randrange(VALUES) for _ in range(self.pages)]
        self.count = rng.randint(*self.facts)
        self.later = rng.random() < self.late
        self.needed = [] if self.later else rng.sample(range(self.pages), self.count)
        chances = [self.cue if page in self.needed else self.false_cue for page in range(self.pages)]
        likely = [page for page, chance in enumerate(chances) if rng.random() < chance]
        flags = [page in self.needed or rng.random() < 0.1 for page in range(self.pages)]
        self._flags = [not self.later and flag for flag in flags]
        rng.shuffle(likely)
        self.opened = []
        told = []
        if rng.random() < self.known:
            told = rng.sample([self._fact(page) for page in range(self.pages)], self.pages)
            if self.later:
                self.needed = rng.sample(range(self.pages), self.count)
                told += ["need", self._asked()]
        asked = "later" if self.later else self._asked()
        # A page as the last word could be taken for an action that was begun.
        return " ".join(["hunt", asked, "likely", *(f"p{page}" for page in likely), "known", *told]), self._info(False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        words = action.split()
        if words and words[0] == "answer":
            right = bool(self.needed) and sorted(words[1:]) == sorted(map(self._fact, self.needed))
            return "right" if right else "wrong", float(right), True, False, self._info(right)
        page = int(words[0][1:]) if len(words) == 1 and re.fullmatch(r"p\d{1,2}", words[0]) else self.pages
        if page >= self.pages:
            return "nothing", 0.0, False, False, self._info(False)
        self.opened.append(page)
        # Drawn anew by task, page and visit, so that a page looks alike but is not the same text twice.
        fill = random.Random(f"{self.keys} {page} {len(self.opened)}")
        flag = "flag" if self._flags[page] else "plain"
        text = f"p{page} {flag} {self._fact(page)} {_filler(fill, self.filler)}"
        if self.later and not self.needed and len(set(self.opened)) >= self.reveal:
            self.needed = random.Random(f"{self.keys} need").sample(sorted(set(self.opened)), self.count)
            text = f"{text} {_filler(fill, self.brief)} need {self._asked()}"
        return text.strip(), 0.0, False, False, self._info(False)

    def _fact(self, page: int) -> str:
        return f"k{self.keys[page]}:v{self.values[page]}"

    def _asked(self) -> str:
        return " ".join(f"k{key}" for key in sorted(self.keys[page] for page in self.needed))

    def _info(self, success: bool) -> dict[str, Any]:
        return {"success": success, "gold": self.gold(), "facts": self.count}

    # -- what demonstrations are written with; all but gold know only what is in view ------------------------------------

    def script(self, view: str, rng: random.Random) -> str:
        """The next action of a wasteful expert: it answers from what is in view, and otherwise opens some page.

        As long as it does not know what is asked for it reads the pages in their order.
        """
        facts = dict(fact.split(":") for fact in self.digest(view))
        asked = _wanted(view)
        if asked and all(key in facts for key in asked):
            return " ".join(["answer", *(f"{key}:{facts[key]}" for key in asked)])
        shown = [int(page) for page in re.findall(r"\bp(\d+) (?:flag|plain)\b", view)]
        read = {*shown, *(int(page) for page in re.findall(r"\bp(\d+) k\d+:v\d+", view))}
        if not asked:
            return f"p{(shown[-1] + 1) % self.pages if shown else 0}"
        likely = [page for page in _likely(view) if page not in read]
        unread = [page for page in range(self.pages) if page not in read]
        if rng.random() < 0.25 or not unread:
            return f"p{rng.randrange(self.pages)}"
        return f"p{rng.choice(likely or unread)}"

    def note(self, observation: str) -> str:
        """What an observation tells: ``k3:v8`` or ``nothing``."""
        return next(iter(self.digest(observation)), "nothing")

    def digest(self, view: str) -> list[str]:
        """Every fact that can be read in the text, each once, by their keys."""
        return sorted(set(re.findall(r"\bk\d+:v\d+\b", view)), key=lambda fact: int(fact[1:].partition(":")[0]))

    def gold(self) -> list[str]:
        """The actions whose answers hold what is asked for, in the order it is asked for."""
        return [f"p{page}" for page in sorted(self.needed, key=lambda page: self.keys[page])]


def _likely(view: str) -> list[int]:
    """The pages that the task calls likely."""
    found = re.search(r"\blikely((?: p\d+)*)", view)
    return [int(page[1:]) for page in found[1].split()] if found else []


def _wanted(view: str) -> list[str]:
    """The keys asked for, by the brief if there was one."""
    found = re.findall(r"\b(?:need|hunt)((?: k\d+)+)\b", view)
    return found[-1].split() if found else []


def _filler(rng: random.Random, count: int) -> str:
    return " ".join(f"f{rng.randrange(FILLERS)}" for _ in range(count))
