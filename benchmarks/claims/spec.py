"""What a claims file says: settings, arms and checks."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

FOLDER = Path("benchmarks/claims")
REFERENCE = re.compile(r"\{(\w[\w.-]*)\}")

Overrides = dict[str, Any]


class SpecError(ValueError):
    """A claims file that cannot be run; the message names the file and the key."""


@dataclass(frozen=True)
class Stage:
    """An earlier ``zoo`` command whose outcome feeds what comes after it: the weights of a ``fit``, the folder of others."""

    name: str
    config: str
    overrides: Overrides
    command: str = "fit"


@dataclass(frozen=True)
class Arm:
    name: str
    description: str = ""
    overrides: Overrides = field(default_factory=dict)
    stages: tuple[Stage, ...] = ()  # that it needs, each behind those it needs itself


@dataclass(frozen=True)
class Setting:
    """One table: arms that differ in nothing but their overrides.

    Without ``fit`` an arm is what its stages left: only tested here, by ``model.weights`` of its overrides.
    A stage with ``ckpt_path`` among its overrides goes on from another's checkpoint.
    """

    name: str
    title: str
    config: str
    overrides: Overrides
    test_overrides: Overrides
    budget_episodes: int | None
    metric: str
    reference: str
    core: tuple[str, ...]
    secondary: tuple[str, ...]
    seeds: int
    secondary_seeds: int
    fit: bool = True
    stage_curves: bool = False  # the learning curve is that of the stages

    @property
    def arms(self) -> tuple[str, ...]:
        return self.core + self.secondary

    @property
    def curve(self) -> str:
        """The metric's learning curve: ``test/success`` is followed as ``val/success``."""
        return "val/" + self.metric.split("/", 1)[1]

    def seeds_of(self, arm: str) -> int:
        return self.seeds if arm in self.core else self.secondary_seeds

    def fit_overrides(self, arm: Arm) -> Overrides:
        budget = {} if self.budget_episodes is None else {"data.episode_budget": self.budget_episodes}
        return {**budget, **self.overrides, **arm.overrides}


@dataclass(frozen=True)
class Bound:
    """The mean of an arm is at least, or at most, a value."""

    arm: str
    op: str
    value: float


@dataclass(frozen=True)
class Above:
    """An arm's mean exceeds another's by ``by``; for ``None`` the interval of the paired difference lies above 0."""

    arm: str
    other: str
    by: float | None


@dataclass(frozen=True)
class Slower:
    """An arm takes at least ``factor`` times the other's episodes to 50 % (medians; never is infinitely many)."""

    arm: str
    other: str
    factor: float


@dataclass(frozen=True)
class Least:
    """An arm's mean of a column is lower than that of every other arm whose mean metric is at least ``among``."""

    arm: str
    column: str
    among: float


@dataclass(frozen=True)
class Within:
    """The means of the arms differ by at most ``within``."""

    arms: tuple[str, ...]
    within: float


Condition = Bound | Above | Slower | Least | Within


@dataclass(frozen=True)
class Check:
    """A claim about one setting that holds if any of its conditions does."""

    setting: str
    claim: str
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class Sweep:
    """The metric of arms over settings that differ in a number."""

    title: str
    settings: dict[str, float]  # in ascending order of the number
    arms: tuple[str, ...]


@dataclass(frozen=True)
class Claims:
    name: str
    title: str
    readme: str | None
    curves: tuple[str, ...]
    extra_curves: tuple[str, ...]
    settings: dict[str, Setting]
    arms: dict[str, Arm]
    checks: tuple[Check, ...]
    columns: tuple[str, ...] = ()
    sweep: Sweep | None = None

    def fingerprint(self, setting: Setting, arm: Arm, root: Path) -> str:
        """Eight hex digits of all that a run of this arm is made from, its seed and the code aside."""
        parts = [made_from(root, stage.config, stage.overrides, stage.command) for stage in arm.stages]
        parts.append(made_from(root, setting.config, setting.fit_overrides(arm), "fit" if setting.fit else "test"))
        return digest([parts, setting.test_overrides])


def made_from(root: Path, config: str, overrides: Overrides, command: str) -> list[Any]:
    """What a command depends on, its seed and the code aside."""
    content = OmegaConf.to_container(OmegaConf.load(root / config))
    return [content, overrides] if command == "fit" else [content, overrides, command]


def digest(value: Any) -> str:
    """Eight hex digits of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def resolve(overrides: Overrides, outcomes: dict[str, str]) -> Overrides:
    """Put the paths of what earlier stages left where overrides refer to them as ``{stage}``."""
    return {
        key: REFERENCE.sub(lambda match: outcomes[match.group(1)], value) if isinstance(value, str) else value
        for key, value in overrides.items()
    }
