"""Reads a claims file; every error names the file and the key."""

from __future__ import annotations

import difflib
import math
import re
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError  # type: ignore[import-untyped]

from benchmarks.claims.records import KEY, RUN_COLUMNS
from benchmarks.claims.spec import (
    FOLDER,
    REFERENCE,
    Above,
    Arm,
    Bound,
    Check,
    Claims,
    Condition,
    Least,
    Overrides,
    Setting,
    Slower,
    SpecError,
    Stage,
    Sweep,
    Within,
)

MAX_SEEDS = 20  # the sign-flip test enumerates 2 ** seeds assignments
_NAME = re.compile(r"\w[\w.-]*")
_OWNED = ("seed_everything", "trainer.default_root_dir")
_REQUIRED = object()


class _Keys:
    """A mapping of the file and where it stands there; what is not asked for is an error."""

    def __init__(self, value: object, source: str, place: str = "") -> None:
        self.source, self.place = source, place
        if not isinstance(value, dict):
            raise SpecError(f"{source}: {place or 'the file'} must be a mapping, not {type(value).__name__}")
        self.values: dict[str, Any] = {str(key): item for key, item in value.items()}
        self._known: set[str] = set()

    def fail(self, key: str, message: str) -> SpecError:
        return SpecError(f"{self.source}: {self.path(key)}: {message}")

    def path(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place else key

    def take(self, key: str, *kinds: type, default: Any = _REQUIRED) -> Any:
        self._known.add(key)
        if key not in self.values:
            if default is _REQUIRED:
                raise self.fail(key, "is missing")
            return default
        value = self.values[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.fail(key, f"must be {' or '.join(kind.__name__ for kind in kinds)}, not {value!r}")
        return value

    def count(self, key: str, default: Any, most: int | None = None) -> Any:
        value = self.take(key, int, default=default)
        if value is not None and (value < 1 or (most is not None and value > most)):
            raise self.fail(key, f"must be at least 1{f' and at most {most}' if most else ''}, not {value}")
        return value

    def names(self, key: str, known: dict[str, Any] | None = None, default: Any = ()) -> tuple[str, ...]:
        """A list of strings without repetition, each in ``known`` if that is given."""
        listed = [str(name) for name in self.take(key, list, default=list(default))]
        for name in listed:
            if known is not None and name not in known:
                raise self.fail(key, f"no arm {name!r}{_nearest(name, known)}")
        if len(set(listed)) != len(listed):
            raise self.fail(key, "names something twice")
        return tuple(listed)

    def section(self, key: str, default: Any = _REQUIRED) -> dict[str, _Keys]:
        """A mapping of names to mappings; names become folders."""
        found = self.take(key, dict, default=default)
        for name in found:
            if not _NAME.fullmatch(str(name)):
                raise self.fail(key, f"{name!r} must consist of letters, digits, '_', '-' and '.'")
        return {str(name): _Keys(item, self.source, f"{self.path(key)}.{name}") for name, item in found.items()}

    def overrides(self, key: str, *owned: str) -> Overrides:
        found: Overrides = self.take(key, dict, default={})
        for name in found:
            if name in (*_OWNED, *owned):
                raise self.fail(key, f"{name} is set by the runner")
        return found

    def config(self, root: Path) -> str:
        path: str = self.take("config", str)
        if not (root / path).is_file():
            raise self.fail("config", f"there is no file {path}")
        return path

    def done(self) -> None:
        for key in self.values:
            if key not in self._known:
                raise self.fail(key, f"is no key here{_nearest(key, self._known)}")


def load(name: str, root: Path) -> Claims:
    """Read and validate ``benchmarks/claims/NAME.yaml`` of the repository at ``root``.

    Raises:
        SpecError: no such file, or one that does not make sense.
    """
    source = FOLDER / f"{name}.yaml"
    if not (root / source).is_file():
        have = sorted(path.stem for path in (root / FOLDER).glob("*.yaml"))
        raise SpecError(f"there is no {source}; there are {', '.join(have) or 'none'}")
    try:
        content = OmegaConf.to_container(OmegaConf.load(root / source))
    except YAMLError as error:
        raise SpecError(f"{source}: {' '.join(str(error).split())}") from error
    keys = _Keys(content, str(source))
    stages = {stage: _stage(stage, item, root) for stage, item in keys.section("stages", default={}).items()}
    arms = {arm: _arm(arm, item, stages) for arm, item in keys.section("arms").items()}
    settings = {setting: _setting(setting, item, arms, root) for setting, item in keys.section("settings").items()}
    extra = keys.names("extra_curves")
    listed = [*(setting.curve for setting in settings.values()), *keys.names("curves"), *extra]
    columns = _columns(keys, settings)
    checks = [
        _check(_Keys(item, str(source), f"checks[{index}]"), settings, columns)
        for index, item in enumerate(keys.take("checks", list, default=[]))
    ]
    sweep = _sweep(keys, arms, settings)
    title, readme = keys.take("title", str, default=name), keys.take("readme", str, default=None)
    if readme is not None and not (root / readme).is_file():
        raise keys.fail("readme", f"there is no file {readme}")
    keys.done()
    curves = tuple(dict.fromkeys(listed))
    return Claims(name, title, readme, curves, extra, settings, arms, tuple(checks), columns, sweep)


def _stage(name: str, keys: _Keys, root: Path) -> Stage:
    command = keys.take("command", str, default="fit")
    if command not in ("fit", "predict"):
        raise keys.fail("command", f"must be fit or predict, not {command!r}")
    stage = Stage(name, keys.config(root), keys.overrides("overrides"), command)
    keys.done()
    return stage


def _arm(name: str, keys: _Keys, stages: dict[str, Stage]) -> Arm:
    overrides = keys.overrides("overrides")
    needed = _needed(keys, f"overrides of {name}", overrides, stages, ())
    arm = Arm(name, keys.take("description", str, default=""), overrides, needed)
    keys.done()
    return arm


def _needed(
    keys: _Keys, place: str, overrides: Overrides, stages: dict[str, Stage], above: tuple[str, ...]
) -> tuple[Stage, ...]:
    """The stages that overrides refer to, each behind those that it needs itself."""
    needed: dict[str, Stage] = {}
    for name in (name for value in overrides.values() if isinstance(value, str) for name in REFERENCE.findall(value)):
        if name not in stages:
            raise keys.fail("overrides", f"{place}: there is no stage {name!r}{_nearest(name, stages)}")
        if name in above:
            raise keys.fail("overrides", f"{place}: stage {name!r} would need itself")
        stage = stages[name]
        earlier = _needed(keys, f"overrides of stage {name}", stage.overrides, stages, (*above, name))
        needed |= {one.name: one for one in (*earlier, stage)}
    return tuple(needed.values())


def _setting(name: str, keys: _Keys, arms: dict[str, Arm], root: Path) -> Setting:
    core, secondary = keys.names("core", arms), keys.names("secondary", arms)
    budget = keys.count("budget_episodes", None)
    seeds = keys.count("seeds", 5, MAX_SEEDS)
    owned = () if budget is None else ("data.episode_budget",)
    setting = Setting(
        name,
        keys.take("title", str, default=""),
        keys.config(root),
        keys.overrides("overrides", *owned),
        keys.overrides("test_overrides", "model.weights"),
        budget,
        keys.take("metric", str, default="test/success"),
        keys.take("reference", str),
        core,
        secondary,
        seeds,
        keys.count("secondary_seeds", seeds, MAX_SEEDS),
        keys.take("fit", bool, default=True),
        keys.take("stage_curves", bool, default=False),
    )
    for arm in () if setting.fit else setting.arms:
        if "model.weights" not in arms[arm].overrides:
            raise keys.fail("fit", f"is false, so arm {arm!r} must say in its overrides which model.weights are tested")
    if "/" not in setting.metric:
        raise keys.fail("metric", f"must be split/name such as test/success, not {setting.metric!r}")
    if setting.reference not in core:
        raise keys.fail("reference", f"{setting.reference!r} must be one of the core arms")
    if both := set(core) & set(secondary):
        raise keys.fail("secondary", f"{', '.join(sorted(both))} are core arms already")
    keys.done()
    return setting


def _columns(keys: _Keys, settings: dict[str, Setting]) -> tuple[str, ...]:
    """Test scores as results name them: without their split."""
    columns = keys.names("columns")
    splits = {setting.metric.split("/", 1)[0] for setting in settings.values()}
    for name in columns:
        if name in (*KEY, "split", *RUN_COLUMNS):
            raise keys.fail("columns", f"{name!r} is no test score")
        split, _, score = name.partition("/")
        if split in splits and score:
            raise keys.fail("columns", f"{name!r} is written without its split: {score}")
    return columns


def _sweep(keys: _Keys, arms: dict[str, Arm], settings: dict[str, Setting]) -> Sweep | None:
    given = keys.take("sweep", dict, default=None)
    if given is None:
        return None
    keys = _Keys(given, keys.source, "sweep")
    points = _Keys(keys.take("settings", dict), keys.source, keys.path("settings"))
    numbers: dict[str, float] = {}
    for name in points.values:
        if name not in settings:
            raise points.fail(name, f"no setting {name!r}{_nearest(name, settings)}")
        number = float(points.take(name, int, float))
        if not math.isfinite(number) or number in numbers.values():
            raise points.fail(name, f"must be a finite number that no other setting has, not {number:g}")
        numbers[name] = number
    if not numbers:
        raise keys.fail("settings", "needs at least one setting")
    if len(metrics := {settings[name].metric: None for name in numbers}) > 1:
        raise keys.fail("settings", f"must share one metric, not {', '.join(metrics)}")
    shown = keys.names("arms", arms)
    if not shown:
        raise keys.fail("arms", "needs at least one arm")
    for arm in shown:
        if not any(arm in settings[name].arms for name in numbers):
            raise keys.fail("arms", f"{arm!r} is in none of the settings {', '.join(numbers)}")
    sweep = Sweep(keys.take("title", str, default=""), dict(sorted(numbers.items(), key=lambda pair: pair[1])), shown)
    keys.done()
    return sweep


def _check(keys: _Keys, settings: dict[str, Setting], columns: tuple[str, ...]) -> Check:
    name = keys.take("setting", str)
    if name not in settings:
        raise keys.fail("setting", f"no setting {name!r}{_nearest(name, settings)}")
    claim = keys.take("claim", str, default="")
    options = keys.take("any", list, default=None)
    if options is None:
        conditions = [_condition(keys, settings[name], columns)]
    else:
        if not options:
            raise keys.fail("any", "needs at least one condition")
        parts = [_Keys(item, keys.source, f"{keys.place}.any[{index}]") for index, item in enumerate(options)]
        conditions = [_condition(part, settings[name], columns) for part in parts]
        for part in parts:
            part.done()
    keys.done()
    return Check(name, claim, tuple(conditions))


def _condition(keys: _Keys, setting: Setting, columns: tuple[str, ...]) -> Condition:
    known = dict.fromkeys(setting.arms)

    def arm(key: str) -> str:
        name: str = keys.take(key, str)
        if name not in known:
            raise keys.fail(key, f"setting {setting.name} has no arm {name!r}{_nearest(name, known)}")
        return name

    if "op" in keys.values:
        op = keys.take("op", str)
        if op not in (">=", "<="):
            raise keys.fail("op", f"must be '>=' or '<=', not {op!r}")
        return Bound(arm("arm"), op, float(keys.take("value", int, float)))
    if "above" in keys.values:
        by = keys.take("by", int, float, str)
        if isinstance(by, str) and by != "interval":
            raise keys.fail("by", f"must be a number or 'interval', not {by!r}")
        return Above(arm("arm"), arm("above"), None if by == "interval" else float(by))
    if "slower_than" in keys.values:
        return Slower(arm("arm"), arm("slower_than"), float(keys.take("factor", int, float)))
    if "least" in keys.values:
        column = keys.take("least", str)
        if column not in columns:
            raise keys.fail("least", f"{column!r} is none of columns{_nearest(column, columns)}")
        return Least(arm("arm"), column, float(keys.take("among", int, float)))
    if "within" in keys.values:
        within, arms = float(keys.take("within", int, float)), keys.names("arms", known, setting.core)
        if within < 0:
            raise keys.fail("within", f"must be at least 0, not {within:g}")
        if len(arms) < 2:
            raise keys.fail("arms", "needs at least two arms")
        return Within(arms, within)
    kinds = "'op' and 'value', 'above' and 'by', 'slower_than' and 'factor', 'least' and 'among', 'within', or 'any'"
    raise keys.fail("arm", f"give {kinds}")


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {close[0]}?" if close else f"; known are {', '.join(known) or 'none'}"
