"""What training episodes say about skills: a reservoir of them, assertions that grade them, and contrasts within a task.

ReSkill, arXiv 2606.01619; dossier 1.9 and 1.10. Actions are those that were parsed from replies, observations are the world's
alone: neither reasoning nor prompts, where a skill's own text stands, can match a pattern.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Self, get_args

from zoo.reskill.lexicon import action_class
from zoo.reskill.skills import Skill, SkillError, bad_pattern
from zoo.rollout.trajectory import Trajectory

Condition = Literal["new", "old"]
Check = Literal[
    "action_exists",
    "action_not_exists",
    "action_before",
    "no_consecutive_repeat",
    "final_action",
    "min_steps",
    "max_steps",
    "action_count",
    "observation_contains",
]
MAX_ASSERTIONS = 15
_PATTERNED = (
    "action_exists",
    "action_not_exists",
    "action_before",
    "final_action",
    "action_count",
    "observation_contains",
)


@dataclass(frozen=True)
class Experience:
    """A training episode, as an author may see it.

    Attributes:
        task: its first observation.
        condition: the version of the bank it was played under; ``new`` only in a test.
        success: whether the task was solved.
        actions: parsed actions, ``None`` for a reply without one.
        observations: what the world said before each action.
        shown: names of the skills in each prompt.
        roles: what the words of the task stand for, where the world tells.
        thoughts: what was said before each of the last two actions.
        seed: of the task: two tasks may begin alike.
    """

    task: str
    condition: Condition
    success: bool
    actions: tuple[str | None, ...]
    observations: tuple[str, ...]
    shown: tuple[tuple[str, ...], ...] = ()
    roles: dict[str, str] = field(default_factory=dict)
    thoughts: tuple[str, ...] = ()
    seed: int = 0

    @cached_property
    def said(self) -> list[str]:
        """The actions that there were."""
        return [action for action in self.actions if action is not None]

    @cached_property
    def classes(self) -> list[str]:
        """The same actions in terms of roles."""
        return [action_class(action, self.roles) for action in self.said]

    @classmethod
    def of(cls, trajectory: Trajectory, shown: Iterable[Iterable[str]], thoughts: Iterable[str]) -> Self:
        turns = trajectory.turns
        return cls(
            task=turns[0].observation if turns else "",
            condition=trajectory.job.behaviour.get("version", "old"),
            success=trajectory.success,
            actions=tuple(turn.action for turn in turns),
            observations=tuple(turn.observation for turn in turns),
            shown=tuple(map(tuple, shown)),
            roles=dict(trajectory.info.get("roles", {})),
            thoughts=tuple(thoughts),
            seed=trajectory.job.task.seed,
        )

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Self:
        lists = {key: tuple(value) for key, value in record.items() if isinstance(value, list)}
        return cls(**{**record, **lists, "shown": tuple(map(tuple, record["shown"]))})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Reservoir:
    """The latest training episodes.

    Args:
        size: how many are kept; the oldest go first.
        per_task: keep the newest of each task, condition and outcome alone, so at most four of a task (the paper); otherwise all.
    """

    def __init__(self, size: int = 200, per_task: bool = True) -> None:
        self.size, self.per_task = size, per_task
        self._kept: dict[Any, Experience] = {}
        self._added = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, experiences: Iterable[Experience]) -> None:
        for experience in experiences:
            key = (
                (experience.task, experience.seed, experience.condition, experience.success)
                if self.per_task
                else self._added
            )
            self._kept.pop(key, None)
            self._kept[key] = experience
            self._added += 1
        for key in list(self._kept)[: max(0, len(self) - self.size)]:
            del self._kept[key]

    @property
    def experiences(self) -> list[Experience]:
        return list(self._kept.values())

    @property
    def mixed(self) -> bool:
        """Whether there are successes and failures."""
        return len({experience.success for experience in self._kept.values()}) == 2

    def sample(self, rng: random.Random, tasks: int = 30) -> list[list[Experience]]:
        """Episodes by task for a comparison: tasks with both outcomes first, the rest drawn from the others."""
        groups: dict[tuple[str, int], list[Experience]] = defaultdict(list)
        for experience in self.experiences:
            groups[experience.task, experience.seed].append(experience)
        both = [group for group in groups.values() if len({one.success for one in group}) == 2]
        one = [group for group in groups.values() if len({one.success for one in group}) == 1]
        chosen = rng.sample(both, min(tasks, len(both)))
        return chosen + rng.sample(one, min(tasks - len(chosen), len(one)))

    def state(self) -> list[dict[str, Any]]:
        return [experience.to_dict() for experience in self.experiences]

    def load_state(self, state: Iterable[dict[str, Any]]) -> None:
        self._kept = {}
        self.add(map(Experience.from_dict, state))


@dataclass(frozen=True)
class Assertion:
    """A deterministic check of one episode. It informs the author; it is no reward and decides nothing.

    Attributes:
        check: one of nine kinds.
        pattern: regular expression, searched without regard to case.
        second: of ``action_before``: what must come later.
        after: of ``observation_contains``: only what followed such an action counts.
        least, most: bounds of ``action_count`` and of the number of steps.
        on: whether patterns are searched in the ``actions`` or in their ``classes``.
        description: for people.

    Raises:
        SkillError: an unknown check, or a pattern that is none.
    """

    check: Check
    pattern: str = ""
    second: str = ""
    after: str = ""
    least: int = 0
    most: int | None = None
    on: Literal["actions", "classes"] = "actions"
    description: str = ""

    def __post_init__(self) -> None:
        if self.check not in get_args(Check):
            raise SkillError(f"an assertion checks one of {', '.join(get_args(Check))}, not {self.check!r}")
        if (self.check in _PATTERNED and not self.pattern) or (self.check == "action_before" and not self.second):
            raise SkillError(f"the assertion {self.check} lacks a pattern")
        for pattern in (self.pattern, self.second, self.after):
            if problem := "patterns are texts" if not isinstance(pattern, str) else bad_pattern(pattern):
                raise SkillError(f"assertion {self.check}: {problem}")
        if self.on not in ("actions", "classes"):
            raise SkillError(f"assertion {self.check}: on is actions or classes, not {self.on!r}")
        numbers = (self.least, 0 if self.most is None else self.most)
        if not all(type(number) is int for number in numbers):
            raise SkillError(f"assertion {self.check}: least and most are whole numbers")

    @classmethod
    def from_dict(cls, record: Any) -> Self:
        known = {field.name for field in fields(cls)}
        if not isinstance(record, dict) or "check" not in record or record.keys() - known:
            raise SkillError(f"an assertion is a mapping with check and some of {', '.join(sorted(known))}: {record!r}")
        return cls(**record)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def holds(self, experience: Experience) -> tuple[bool, str]:
        """Whether an episode passes, and by what."""
        actions = experience.classes if self.on == "classes" else experience.said
        hits = [n for n, action in enumerate(actions) if self.pattern and _found(self.pattern, action)]
        named = ", ".join(f"{n + 1} {actions[n]}" for n in hits[:3]) or f"none of {len(actions)} actions"
        match self.check:
            case "action_exists":
                return bool(hits), named
            case "action_not_exists":
                return not hits, named
            case "action_before":
                later = [n for n, action in enumerate(actions) if _found(self.second, action)]
                return bool(hits and later and hits[0] < later[0]), f"{named}; then {later[:1] or 'never'}"
            case "no_consecutive_repeat":
                twice = [a for a, b in pairwise(actions) if a == b and _found(self.pattern, a)]
                return not twice, twice[0] if twice else "no repeat"
            case "final_action":
                return bool(hits) and hits[-1] == len(actions) - 1, actions[-1] if actions else "no action"
            case "min_steps" | "max_steps" | "action_count":
                count = len(hits) if self.check == "action_count" else len(experience.actions)
                return self.least <= count and (self.most is None or count <= self.most), str(count)
            case "observation_contains":
                seen = self._observed(experience)
                return any(_found(self.pattern, text) for text in seen), f"{len(seen)} observations"

    def _observed(self, experience: Experience) -> list[str]:
        """The observations that count."""
        if not self.after:
            return list(experience.observations)
        followed = zip(experience.actions, experience.observations[1:], strict=False)
        return [text for action, text in followed if action is not None and _found(self.after, action)]


@dataclass(frozen=True)
class Grade:
    """How often an assertion holds among successes and among failures."""

    assertion: Assertion
    successes: float
    failures: float

    @property
    def lift(self) -> float:
        """How much more often it holds where the task was solved."""
        return self.successes - self.failures


def grade(assertions: Iterable[Assertion], experiences: Sequence[Experience]) -> list[Grade]:
    """Pass rates; 0 where there is no such episode."""
    won = [one for one in experiences if one.success]
    lost = [one for one in experiences if not one.success]

    def rate(assertion: Assertion, among: Sequence[Experience]) -> float:
        return sum(assertion.holds(one)[0] for one in among) / len(among) if among else 0.0

    return [Grade(assertion, rate(assertion, won), rate(assertion, lost)) for assertion in assertions]


Transition = tuple[str, str]  # classes of an action and of the next one; "" before the first


def contrast(groups: Iterable[Sequence[Experience]]) -> dict[Transition, float]:
    """How much more often an action follows another where the same task was solved.

    Shares of an episode's transitions, the mean over a task's successes minus that over its failures, summed over tasks that
    have both.
    """
    total: dict[Transition, float] = defaultdict(float)
    for group in groups:
        sides = {won: [one for one in group if one.success == won and one.said] for won in (True, False)}
        if not all(sides.values()):
            continue
        for won, side in sides.items():
            for experience in side:
                classes = ["", *experience.classes]
                for pair, count in Counter(pairwise(classes)).items():
                    total[pair] += (1 if won else -1) * count / (len(classes) - 1) / len(side)
    return dict(total)


def trigger_rate(skill: Skill, experiences: Sequence[Experience]) -> float:
    """Share of episodes in which the skill would be shown at all; an action counts if another one follows it."""
    if skill.trigger != "action_pattern":
        return 1.0
    hits = sum(any(skill.fires([action]) for action in one.actions[:-1]) for one in experiences)
    return hits / len(experiences) if experiences else 0.0


def _found(pattern: str, text: str) -> bool:
    return bool(re.search(pattern, text, re.IGNORECASE))


def distinct(assertions: Iterable[Assertion]) -> list[Assertion]:
    """At most ``MAX_ASSERTIONS``, no two alike but for their description, the latest ones kept."""
    unique = {replace(assertion, description=""): assertion for assertion in assertions}
    return list(unique.values())[-MAX_ASSERTIONS:]
