"""How a bank of skills goes on: a version is written, tested inside the training groups, kept or dropped (dossier 2)."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from numpy.random import Generator

from zoo.reskill.diagnosis import Assertion, Experience, Reservoir, trigger_rate
from zoo.reskill.skills import Add, Bank, Bundle, Operation, Skill, SkillError, operation_record, parse_operation
from zoo.reskill.thompson import Counts, Memory, MemoryEstimate, VersionTest, step_of

log = logging.getLogger(__name__)
Write = Any  # an author, see zoo.reskill.authors


@dataclass(frozen=True)
class Rules:
    """How versions are tested; see :class:`zoo.reskill.module.ReSkillCoEvolver`, whose arguments these are."""

    accept: Literal["test", "always"] = "test"
    allocation: Literal["thompson", "uniform"] = "thompson"
    memory: Memory = "dynamic"
    window: int = 5
    min_episodes: int = 50
    clip: float = 0.15
    draws: int = 10_000
    margin: float = 0.0
    reservoir: int = 200
    min_reservoir: int = 100
    per_task: bool = True
    versions: int | None = None
    max_operations: int = 3
    min_trigger_rate: float = 0.5


@dataclass(frozen=True)
class Decision:
    """What became of a version.

    Attributes:
        started: iteration in which it was written; it is played from the next one on.
        iteration: iteration that decided.
        accepted: whether it was kept.
        new, old: posterior means; NaN without a test.
        bundle: its operations.
        episodes: played under the new and under the old bank in the test.
        fired: how many of the test's episodes each skill was shown in.
    """

    started: int
    iteration: int
    accepted: bool
    new: float
    old: float
    bundle: tuple[Operation, ...]
    episodes: tuple[int, int] = (0, 0)
    fired: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        means = {key: None if math.isnan(value) else value for key, value in (("new", self.new), ("old", self.old))}
        plain = {"started": self.started, "iteration": self.iteration, "accepted": self.accepted, **means}
        bundle = [operation_record(operation) for operation in self.bundle]
        return {**plain, "bundle": bundle, "episodes": list(self.episodes), "fired": self.fired}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Decision:
        means = {key: math.nan if record[key] is None else record[key] for key in ("new", "old")}
        bundle = tuple(parse_operation(operation) for operation in record["bundle"])
        return cls(**{**record, **means, "bundle": bundle, "episodes": tuple(record["episodes"])})


class Evolution:
    """The bank, what is being tested, and all that the next version is written from.

    Attributes:
        bank: the incumbent: what evaluation shows.
        candidate: the version under test, if any.
        test: the running test.
        bundle: the operations that made the candidate.
        started: iteration in which they were written.
        readable: raises ``SkillError`` for skills that the policy cannot read.
    """

    readable: Callable[[Sequence[Skill]], Any]

    def __init__(self, bank: Bank, rules: Rules) -> None:
        self.bank, self.rules = bank, rules
        self.candidate: Bank | None = None
        self.test: VersionTest | None = None
        self.bundle: tuple[Operation, ...] = ()
        self.started = 0
        self.fired: dict[str, int] = {}
        self.reservoir = Reservoir(rules.reservoir, rules.per_task)
        self.assertions: list[Assertion] = []
        self.history: list[Decision] = []
        self.estimate = MemoryEstimate()
        self.readable = lambda skills: None

    def shown(self, version: str) -> Bank:
        """The bank that an episode of this version is played under."""
        return self.candidate if version == "new" and self.candidate is not None else self.bank

    def share(self, generator: Generator) -> float:
        """Share of an iteration's episodes that are played under the new version."""
        if self.test is None:
            return 0.0
        if self.rules.allocation == "uniform":
            return 0.5
        return self.test.allocation(self.rules.clip, self.rules.draws, generator)

    def observe(self, experiences: Sequence[Experience], iteration: int) -> Decision | None:
        """Take in the training episodes of an iteration, all of them at once, and decide if the test is over."""
        self.reservoir.add(experiences)
        if self.test is None:
            return None
        for experience in experiences:
            for name in {name for shown in experience.shown for name in shown}:
                self.fired[name] = self.fired.get(name, 0) + 1
        won = {(v, s): 0 for v in ("new", "old") for s in (True, False)}
        for experience in experiences:
            won[experience.condition, experience.success] += 1
        self.test.update(step_of(*(Counts(won[v, True], won[v, False]) for v in ("new", "old"))))
        if len(self.test.steps) < self.rules.window or self.test.episodes < self.rules.min_episodes:
            return None
        return self._decide(self.test, iteration)

    def _decide(self, test: VersionTest, iteration: int) -> Decision:
        accepted = test.accepts(self.rules.margin)
        episodes = (sum(step["new"].episodes for step in test.steps), sum(step["old"].episodes for step in test.steps))
        means = (test.new.mean, test.old.mean)
        decision = Decision(self.started, iteration, accepted, *means, self.bundle, episodes, self.fired)
        self.estimate.finish(test.steps)
        self._end(decision)
        return decision

    def _end(self, decision: Decision) -> None:
        if decision.accepted and self.candidate is not None:
            self.bank = self.candidate
        self.history.append(decision)
        self.candidate, self.test, self.bundle, self.fired = None, None, (), {}

    @property
    def ready(self) -> bool:
        """Whether the next version is to be written now."""
        limit = self.rules.versions
        free = self.test is None and (limit is None or len(self.history) < limit)
        return free and len(self.reservoir) >= self.rules.min_reservoir and self.reservoir.mixed

    def write(self, author: Write, iteration: int, rng: random.Random) -> Bundle | None:
        """Let an author write a bundle from copies of what it may see; ``None`` if it has no idea."""
        bundle: Bundle | None = author(
            self.reservoir, self.bank, self.history, self.assertions, rng=rng, check=self.check
        )
        if not bundle:
            return None
        try:
            self.check(bundle)
        except SkillError as error:
            log.warning("iteration %d: the proposed version is refused: %s", iteration, error)
            return None
        return tuple(bundle)

    def check(self, bundle: Bundle) -> Bank:
        """The bank after a bundle, if that may be tested.

        Raises:
            SkillError: an operation that cannot be carried out, or a skill that would hardly ever be shown; tells the rate.
        """
        after = self.bank.apply(bundle, self.rules.max_operations)
        self.readable(after.skills)
        before = {skill.name: skill for skill in self.bank.skills}
        for skill in after.skills:
            known = before.get(skill.name)
            if known and (known.trigger, known.pattern) == (skill.trigger, skill.pattern):
                continue
            rate = trigger_rate(skill, self.reservoir.experiences)
            if rate < self.rules.min_trigger_rate:
                least = f"at least {self.rules.min_trigger_rate:.0%} are asked for"
                raise SkillError(f"skill {skill.name} fires in {rate:.0%} of {len(self.reservoir)} episodes; {least}")
        return after

    def begin(self, bundle: Bundle, iteration: int) -> None:
        """Put a checked bundle to the test, or take it over at once where the rules say so."""
        stamped = [Add(replace(one.skill, created_at=iteration)) if isinstance(one, Add) else one for one in bundle]
        self.candidate, self.bundle, self.started = self.check(stamped), tuple(stamped), iteration
        if self.rules.accept == "always":
            self._end(Decision(iteration, iteration, True, math.nan, math.nan, self.bundle))
            return
        memory = self.rules.memory
        value = self.estimate.value if memory == "dynamic" else math.inf if isinstance(memory, str) else float(memory)
        self.test = VersionTest(value, last_step=memory == "last_step")

    def state(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "bank": self.bank.records(),
            "candidate": self.candidate and self.candidate.records(),
            "test": self.test and self.test.state(),
            "bundle": [operation_record(operation) for operation in self.bundle],
            "started": self.started,
            "fired": self.fired,
            "reservoir": self.reservoir.state(),
            "assertions": [assertion.to_dict() for assertion in self.assertions],
            "history": [decision.to_dict() for decision in self.history],
            "loglikelihood": self.estimate.loglikelihood.tolist() if self.estimate.tests else [],
            "tests": self.estimate.tests,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        cap = self.bank.cap
        self.bank = Bank.from_records(state["bank"], cap)
        self.candidate = None if state["candidate"] is None else Bank.from_records(state["candidate"], cap)
        self.test = None if state["test"] is None else VersionTest.from_state(state["test"])
        self.bundle = tuple(parse_operation(operation) for operation in state["bundle"])
        self.started, self.fired = state["started"], dict(state["fired"])
        self.reservoir.load_state(state["reservoir"])
        self.assertions[:] = map(Assertion.from_dict, state["assertions"])
        self.history[:] = map(Decision.from_dict, state["history"])
        self.estimate = MemoryEstimate(tests=state["tests"])
        if state["tests"]:
            self.estimate.loglikelihood = self.estimate.loglikelihood + state["loglikelihood"]
