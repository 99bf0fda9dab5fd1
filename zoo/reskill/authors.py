"""Who writes skills. An author sees training episodes, the bank and its history, and gives a bundle of operations or nothing.

:class:`TemplateAuthor` needs no language model (dossier 6.5); those that do are in ``language.py``.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from zoo.reskill.diagnosis import (
    Assertion,
    Experience,
    Grade,
    Reservoir,
    Transition,
    contrast,
    distinct,
    grade,
    trigger_rate,
)
from zoo.reskill.evolution import Decision
from zoo.reskill.lexicon import AVOID, TRY
from zoo.reskill.skills import Add, Bank, Bundle, Delete, Operation, Skill, SkillError, parse_operation

_KEPT_ASSERTIONS, _LEAST_SCORE = 10, 0.02
_CLASSES = 20  # of actions, and of pairs, that assertions are made of
_REMEMBERED = 5  # rejected versions whose ideas are not proposed again

Check = Callable[[Bundle], Bank]


class Author(ABC):
    """Writes the next version of a bank."""

    @abstractmethod
    def __call__(
        self,
        reservoir: Reservoir,
        bank: Bank,
        history: Sequence[Decision],
        assertions: list[Assertion],
        *,
        rng: random.Random,
        check: Check,
    ) -> Bundle | None:
        """One proposal.

        Args:
            reservoir: training episodes.
            bank: the incumbent.
            history: what became of earlier versions.
            assertions: the author's own checks of episodes; to be edited in place.
            rng: source of chance.
            check: raises ``SkillError`` for a bundle that may not be tested.

        Returns:
            The bundle; ``None`` for no idea, which costs nothing but this turn.
        """


class NoAuthor(Author):
    """Writes nothing: the bank stays as it is."""

    def __call__(self, *_: Any, **__: Any) -> None:
        return None


class ScriptedAuthor(Author):
    """Proposes what it was given, in order; nothing when a bundle is not allowed, and nothing at the end.

    Args:
        bundles: as plain data, see :func:`zoo.reskill.skills.parse_operation`.
    """

    def __init__(self, bundles: Sequence[Sequence[dict[str, Any]]]) -> None:
        self.bundles = [[parse_operation(record) for record in bundle] for bundle in bundles]

    def __call__(self, reservoir: Any, bank: Bank, history: Sequence[Decision], *_: Any, **__: Any) -> Bundle | None:
        return self.bundles[len(history)] if len(history) < len(self.bundles) else None


class Idea(NamedTuple):
    """That one class of action should, or should not, follow a verb (``""``: at the start)."""

    verb: str
    action: str
    wanted: bool

    @property
    def name(self) -> str:
        words = f"{TRY if self.wanted else AVOID} {self.action} {f'after {self.verb}' if self.verb else 'first'}"
        return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")

    def skill(self, experiences: Sequence[Experience], least: float) -> Skill:
        """The skill, shown after the verb; always, where too few episodes have the verb."""
        advice = f"{TRY if self.wanted else AVOID} {self.action}"
        when = f"right after {self.verb}" if self.verb else "at the start"
        skill = Skill(self.name, when, advice, (), "beginning", "")
        if not self.verb:
            return skill
        skill = replace(skill, trigger="action_pattern", pattern=rf"^{re.escape(self.verb)}\b")
        if trigger_rate(skill, experiences) >= least:
            return skill
        return replace(skill, when_to_use="at any time", trigger="general", pattern="")


class TemplateAuthor(Author):
    """Contrasts successes with failures of the same task and says what should follow what.

    An idea is a pair of a verb and the class of the next action; its weight is how much more often the pair occurs in successes
    (or in failures: then the advice is to avoid it), times how well assertions about that class tell successes from failures.
    Ideas of the latest rejected versions are left out. A skill whose pair has come to speak for the opposite is deleted; in a
    full bank the weakest one makes room.

    Args:
        operations: most skills that a version adds.
        use_assertions: rank ideas; otherwise any of them is taken (ablation).
        least_rate: trigger rate below which a skill is shown always.
    """

    def __init__(self, operations: int = 2, use_assertions: bool = True, least_rate: float = 0.5) -> None:
        self.operations, self.use_assertions, self.least_rate = operations, use_assertions, least_rate

    def __call__(
        self,
        reservoir: Reservoir,
        bank: Bank,
        history: Sequence[Decision],
        assertions: list[Assertion],
        *,
        rng: random.Random,
        check: Check,
    ) -> Bundle | None:
        experiences = reservoir.experiences
        weights = _by_verb(contrast(reservoir.sample(rng)))
        assertions[:] = _best(experiences, weights) if self.use_assertions else []
        ideas = self._ranked(weights, grade(assertions, experiences), rng)
        rejected = [decision for decision in history if not decision.accepted][-_REMEMBERED:]
        proposed = [
            operation.skill for decision in rejected for operation in decision.bundle if isinstance(operation, Add)
        ]
        taken = {skill.name for skill in (*bank.skills, *proposed)} | {_turned(skill).name for skill in bank.skills}
        support = {skill.name: _support(skill, weights) for skill in bank.skills}
        weakest = min(support, key=support.__getitem__, default="")
        leaves = bool(weakest) and (support[weakest] < 0 or len(bank) == bank.cap)
        bundle: list[Operation] = [Delete(weakest)] if leaves else []
        room = min(self.operations, bank.cap - len(bank) + len(bundle))
        for idea in ideas:
            added = [*bundle, Add(idea.skill(experiences, self.least_rate))]
            if room and idea.name not in taken and _allowed(check, added):
                bundle, room = added, room - 1
        return bundle or None

    def _ranked(self, weights: dict[Transition, float], grades: Sequence[Grade], rng: random.Random) -> list[Idea]:
        """All ideas, the best first."""
        ideas = {Idea(verb, action, weight > 0): weight for (verb, action), weight in weights.items() if weight}
        if not self.use_assertions:
            return rng.sample(list(ideas), len(ideas))

        def worth(idea: Idea) -> float:
            pattern = _exactly(idea.action)
            lifts = [abs(g.lift) for g in grades if pattern in (g.assertion.pattern, g.assertion.second)]
            return abs(ideas[idea]) * (0.2 + max(lifts, default=0.0))

        return sorted(ideas, key=worth, reverse=True)


class AdversarialAuthor(Author):
    """Another author's proposals, a share of them with the advice turned round: plausible and wrong.

    Args:
        author: whose proposals.
        share: of proposals that are turned round.
    """

    def __init__(self, author: Author, share: float = 0.5) -> None:
        self.author, self.share = author, share

    def __call__(self, *args: Any, rng: random.Random, check: Check) -> Bundle | None:
        bundle = self.author(*args, rng=rng, check=check)
        turn = rng.random() < self.share
        if not (bundle and turn):
            return bundle
        return [Add(_turned(op.skill)) if isinstance(op, Add) else op for op in bundle]


def _turned(skill: Skill) -> Skill:
    """The opposite advice."""
    swap = {TRY: AVOID, AVOID: TRY}
    verb, _, rest = skill.action.partition(" ")
    name, _, of = skill.name.partition("-")
    return replace(skill, name=f"{swap.get(name, name)}-{of}", action=f"{swap.get(verb, verb)} {rest}".strip())


def _allowed(check: Check, bundle: Bundle) -> bool:
    try:
        check(bundle)
    except SkillError:
        return False
    return True


def _by_verb(weights: dict[Transition, float]) -> dict[Transition, float]:
    """Contrasts of a verb and the class of the next action, whatever the verb was done with."""
    total: dict[Transition, float] = defaultdict(float)
    for (before, after), weight in weights.items():
        total[before.partition(" ")[0], after] += weight
    return dict(total)


def _support(skill: Skill, weights: dict[Transition, float]) -> float:
    """How much the contrasts speak for a skill of this author; 0 for one of another's."""
    advice, _, action = skill.action.partition(" ")
    sign = {TRY: 1, AVOID: -1}.get(advice, 0)
    fits = (
        weight for (verb, after), weight in weights.items() if after == action and skill.fires([verb] if verb else [])
    )
    return sign * sum(fits)


def _exactly(action: str) -> str:
    return f"^{re.escape(action)}$"


def _best(experiences: Sequence[Experience], weights: dict[Transition, float]) -> list[Assertion]:
    """The assertions that tell most: how much more often they hold in successes, times how many failures break them."""
    named = [
        action for action, _ in Counter(action for one in experiences for action in one.classes).most_common(_CLASSES)
    ]
    strongest = sorted(weights, key=lambda pair: -abs(weights[pair]))[:_CLASSES]
    made = [Assertion("no_consecutive_repeat", on="classes")]
    for action in named:
        made += [
            Assertion(check, _exactly(action), on="classes")
            for check in ("action_exists", "action_not_exists", "final_action")
        ]
        made.append(Assertion("action_count", _exactly(action), most=2, on="classes"))
    made += [
        Assertion("action_before", rf"^{re.escape(verb)}\b", _exactly(action), on="classes")
        for verb, action in strongest
        if verb
    ]
    scored = [(g.lift * (1 - g.failures), g.assertion) for g in grade(made, experiences)]
    best = sorted((pair for pair in scored if pair[0] >= _LEAST_SCORE), key=lambda pair: -pair[0])
    return distinct(assertion for _, assertion in best[:_KEPT_ASSERTIONS])
