"""Tables, checks and pictures out of the recorded runs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.claims.curves import Points, draw, draw_sweep
from benchmarks.claims.records import LEVEL, Records, Row
from benchmarks.claims.spec import (
    Arm,
    Bound,
    Check,
    Claims,
    Condition,
    Least,
    Setting,
    Slower,
    SpecError,
    Sweep,
    Within,
)
from benchmarks.claims.stats import Interval, interval, paired, reached

NONE = "-"
_LEVEL = f"{100 * LEVEL:.0f} %"
_SLACK = 1e-6  # scores are written in single precision


@dataclass(frozen=True)
class Result:
    """The runs of one arm in one setting."""

    values: dict[int, float]  # metric, by seed
    episodes: list[float]
    tokens: list[float]
    cpu_seconds: list[float]
    to_level: list[float]  # infinite where a seed never reached it
    columns: dict[str, list[float]] = field(default_factory=dict)  # NaN where a run has no such score

    @classmethod
    def of(cls, rows: Sequence[Row], metric: str, columns: Sequence[str] = ()) -> Result:
        def column(name: str, empty: float = math.nan) -> list[float]:
            return [float(row[name]) if row.get(name) else empty for row in rows]

        scores = column(metric.split("/", 1)[1])
        return cls(
            dict(zip((int(row["seed"]) for row in rows), scores, strict=True)),
            column("episodes"),
            column("generated_tokens"),
            column("cpu_seconds"),
            column(f"episodes_to_{round(100 * LEVEL)}", math.inf),
            {name: column(name) for name in columns},
        )

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.values.values())))

    def score(self, column: str) -> float:
        """The mean of a column; NaN unless every run has that score."""
        return float(np.mean(self.columns.get(column, math.nan)))


Results = dict[str, Result]  # by arm; arms without a run are absent


def results_of(claims: Claims, setting: Setting, rows: Sequence[Row]) -> Results:
    """The recorded runs of a setting, arm by arm."""
    found = {arm: [row for row in rows if (row["setting"], row["arm"]) == (setting.name, arm)] for arm in setting.arms}
    return {arm: Result.of(own, setting.metric, claims.columns) for arm, own in found.items() if own}


def table(setting: Setting, results: Results) -> str:
    """One setting as a markdown table, core arms first."""
    head = ["arm", "seeds", setting.metric, "95 %", f"minus {setting.reference}", "95 %", "p"]
    head += ["episodes", "tokens", "CPU-s", f"episodes to {_LEVEL}"]
    lines = [_line(head), _line(["---", *["--:"] * (len(head) - 1)])]
    for arm in setting.arms:
        result, wanted = results.get(arm), setting.seeds_of(arm)
        name = _name(setting, arm)
        if result is None:
            lines.append(_line([name, f"0/{wanted}", *[NONE] * (len(head) - 2)]))
            continue
        mean, low, high = interval(list(result.values.values()))
        cells = [name, f"{len(result.values)}/{wanted}", f"{mean:.3f}", _range(low, high)]
        cells += _difference(result, results.get(setting.reference), arm == setting.reference)
        cells += [_number(values) for values in (result.episodes, result.tokens, result.cpu_seconds)]
        lines.append(_line([*cells, _level(result.to_level)]))
    return "\n".join(lines)


def columns_table(setting: Setting, results: Results, columns: Sequence[str]) -> str:
    """Further test scores of a setting, means over seeds."""
    lines = [_line(["arm", *columns]), _line(["---", *["--:"] * len(columns)])]
    for arm in setting.arms:
        result = results.get(arm)
        scores = [_score(result.score(column)) if result else NONE for column in columns]
        lines.append(_line([_name(setting, arm), *scores]))
    return "\n".join(lines)


def points_of(sweep: Sweep, results: dict[str, Results]) -> Points:
    """The metric of the sweep's arms, by the numbers of the settings that have runs of them."""
    return {
        arm: {
            number: interval(list(results[name][arm].values.values()))
            for name, number in sweep.settings.items()
            if arm in results[name]
        }
        for arm in sweep.arms
    }


def sweep_table(sweep: Sweep, points: Points) -> str:
    """Arms by numbers: the mean of the metric and its interval."""
    numbers = sweep.settings.values()
    lines = [_line(["arm", *(f"{number:g}" for number in numbers)]), _line(["---", *["--:"] * len(numbers)])]
    for arm, curve in points.items():
        lines.append(_line([arm, *(_interval(curve[number]) if number in curve else NONE for number in numbers)]))
    return "\n".join(lines)


def verdict(check: Check, settings: dict[str, Setting], results: dict[str, Results]) -> str:
    """``PASS``, ``FAIL``, or ``OPEN`` as long as no condition holds and one of them lacks runs; with the numbers."""
    setting = settings[check.setting]
    outcomes = [_judge(condition, setting, results[check.setting]) for condition in check.conditions]
    held = [outcome for outcome, _ in outcomes]
    word = "PASS" if True in held else "OPEN" if None in held else "FAIL"
    claim = f"{check.claim}: " if check.claim else ""
    return f"{word} {setting.name}: {claim}{' or '.join(text for _, text in outcomes)}"


def _judge(condition: Condition, setting: Setting, results: Results) -> tuple[bool | None, str]:
    """Whether the condition holds (``None``: no runs to tell by), and the numbers."""
    if isinstance(condition, Least):
        return _judge_least(condition, setting, results)
    if isinstance(condition, Within):
        return _judge_within(condition, setting, results)
    arm = results.get(condition.arm)
    if isinstance(condition, Bound):
        text = f"{condition.arm} {setting.metric} {condition.op} {condition.value:g}"
        if arm is None:
            return None, f"{text} (no runs)"
        holds = arm.mean >= condition.value if condition.op == ">=" else arm.mean <= condition.value
        return holds, f"{text} (is {arm.mean:.3f}, {_seeds(len(arm.values), setting, condition.arm)})"
    other = results.get(condition.other)
    if isinstance(condition, Slower):
        text = f"{condition.arm} needs {condition.factor:g} times the episodes of {condition.other} to {_LEVEL}"
        if arm is None or other is None:
            return None, f"{text} (no runs)"
        mine, others = reached(arm.to_level), reached(other.to_level)
        holds = math.isfinite(others) and mine >= condition.factor * others
        return holds, f"{text} ({_level(arm.to_level)} against {_level(other.to_level)})"
    lead = "with its interval above 0" if condition.by is None else f"by {condition.by:g}"
    text = f"{condition.arm} above {condition.other} {lead}"
    comparison = paired(arm.values, other.values) if arm and other else None
    if comparison is None:
        return None, f"{text} (no runs in common)"
    mean, low, high = comparison.difference
    holds = low > 0 if condition.by is None else mean >= condition.by - 1e-9
    return holds, f"{text} (is {mean:+.3f} [{_range(low, high)}], {comparison.seeds} common seeds)"


def _judge_least(condition: Least, setting: Setting, results: Results) -> tuple[bool | None, str]:
    name, column, among = condition.arm, condition.column, condition.among
    text = f"{name} has the least {column} of arms with {setting.metric} >= {among:g}"
    missing = [arm for arm in dict.fromkeys((*setting.core, name)) if arm not in results]
    if missing:
        return None, f"{text} (no runs of {', '.join(missing)})"
    good = {arm: result.mean >= among - _SLACK for arm, result in results.items()}
    scores = {arm: result.score(column) for arm, result in results.items() if good[arm] or arm == name}
    unknown = [arm for arm, score in scores.items() if not math.isfinite(score)]
    if unknown:
        return None, f"{text} (no {column} of {', '.join(unknown)})"
    mine, result = scores.pop(name), results[name]
    best = min(scores, key=lambda arm: scores[arm], default=None)
    against = f"next is {best} with {_score(scores[best])}" if best else "there is no other"
    numbers = f"is {_score(mine)} at {result.mean:.3f}, {_seeds(len(result.values), setting, name)}; {against}"
    return good[name] and (best is None or mine < scores[best]), f"{text} ({numbers})"


def _judge_within(condition: Within, setting: Setting, results: Results) -> tuple[bool | None, str]:
    text = f"{setting.metric} of {', '.join(condition.arms)} within {condition.within:g}"
    missing = [arm for arm in condition.arms if arm not in results]
    if missing:
        return None, f"{text} (no runs of {', '.join(missing)})"
    means = {arm: results[arm].mean for arm in condition.arms}
    top, bottom = max(means, key=lambda arm: means[arm]), min(means, key=lambda arm: means[arm])
    gap = means[top] - means[bottom]
    return gap <= condition.within + _SLACK, (
        f"{text} (is {gap:.3f}: {top} {means[top]:.3f}, {bottom} {means[bottom]:.3f})"
    )


def render(claims: Claims, records: Records, picture: str | None, sweep: str | None = None) -> str:
    """The whole report as markdown.

    Args:
        claims: the claims file.
        records: its runs.
        picture: path of the curves as seen from the file the text is for, if there are any.
        sweep: likewise, of the metric over settings.
    """
    rows = list(records.done().values())
    results = _all_results(claims, rows)
    parts = []
    for name, setting in claims.settings.items():
        budget = f", {setting.budget_episodes} episodes for every arm" if setting.budget_episodes else ""
        title = f"{name}: {setting.title}" if setting.title else name
        parts.append(f"**{title}** (`{setting.config}`{budget})\n\n{table(setting, results[name])}")
        if claims.columns:
            parts.append(columns_table(setting, results[name], claims.columns))
    if claims.sweep:
        lead = f"**{claims.sweep.title or 'sweep'}**, {_swept(claims, claims.sweep)}:"
        parts.append(f"{lead}\n\n{sweep_table(claims.sweep, points_of(claims.sweep, results))}")
        if sweep:
            parts.append(f"![{claims.name} over {claims.sweep.title or 'settings'}]({sweep})")
    if claims.checks:
        verdicts = [f"- {verdict(check, claims.settings, results)}" for check in claims.checks]
        parts.append("Checks:\n\n" + "\n".join(verdicts))
    troubles = _troubles(claims, records)
    if troubles:
        parts.append("\n".join(f"- {trouble}" for trouble in troubles))
    if picture:
        parts.append(f"![learning curves of {claims.name}]({picture})")
    arms = [f"- {arm.name}: {arm.description}" for arm in _used(claims) if arm.description]
    if arms:
        parts.append("Arms:\n\n" + "\n".join(arms))
    commits = ", ".join(sorted({row["commit"] for row in rows})) or NONE
    parts.append(
        "Means over seeds with 95 % bootstrap intervals; differences are paired by seed, p by exact sign flips. "
        "Episodes include probes and earlier stages; CPU-seconds are of training; episodes to 50 % are a median, with "
        f"the number of seeds that got there. Made by `python -m benchmarks.claims {claims.name}` at {commits}."
    )
    return "\n\n".join(parts) + "\n"


def write(claims: Claims, records: Records) -> str:
    """Write table file and pictures, put the tables into the readme, and return the text.

    Raises:
        SpecError: the readme has no markers.
    """
    drawn = [records.picture] if draw(claims, records) else []
    if claims.sweep:
        points = points_of(claims.sweep, _all_results(claims, list(records.done().values())))
        drawn += [records.sweep] if draw_sweep(claims, points, _swept(claims, claims.sweep), records.sweep) else []

    def seen_from(folder: Path) -> str:
        paths = {path: os.path.relpath(path, folder) for path in drawn}
        return render(claims, records, paths.get(records.picture), paths.get(records.sweep))

    text = seen_from(records.markdown.parent)
    records.markdown.parent.mkdir(parents=True, exist_ok=True)
    records.markdown.write_text(f"# {claims.title}\n\n{text}")
    if claims.readme:
        readme = records.root / claims.readme
        inject(readme, claims.name, seen_from(readme.parent))
    return text


def inject(readme: Path, name: str, text: str) -> None:
    """Put the text between ``<!-- claims:NAME -->`` and ``<!-- /claims:NAME -->``.

    Raises:
        SpecError: the file does not have each marker once, in this order.
    """
    start, end = f"<!-- claims:{name} -->", f"<!-- /claims:{name} -->"
    content = readme.read_text()
    if content.count(start) != 1 or content.count(end) != 1 or content.index(start) > content.index(end):
        raise SpecError(f"{readme}: needs the lines {start} and {end}, once each")
    before, after = content.split(start)[0], content.split(end)[1]
    readme.write_text(f"{before}{start}\n\n{text}\n{end}{after}")


def _troubles(claims: Claims, records: Records) -> list[str]:
    """Failed runs, and rows made under settings that have changed since."""
    rows, troubles = records.done(), []
    for setting in claims.settings.values():
        for name in setting.arms:
            fingerprint = claims.fingerprint(setting, claims.arms[name], records.root)
            for seed in range(setting.seeds_of(name)):
                key = (setting.name, name, seed)
                failure = records.failure(key)
                if failure.exists():
                    troubles.append(f"FAILED {setting.name} {name} seed {seed}: {failure.read_text().strip()}")
                if key in rows and rows[key]["fingerprint"] != fingerprint:
                    troubles.append(f"STALE {setting.name} {name} seed {seed}: its settings have changed since")
    return troubles


def _all_results(claims: Claims, rows: Sequence[Row]) -> dict[str, Results]:
    return {name: results_of(claims, setting, rows) for name, setting in claims.settings.items()}


def _swept(claims: Claims, sweep: Sweep) -> str:
    """The metric that all settings of the sweep share."""
    return claims.settings[next(iter(sweep.settings))].metric


def _used(claims: Claims) -> list[Arm]:
    return [
        arm for name, arm in claims.arms.items() if any(name in setting.arms for setting in claims.settings.values())
    ]


def _difference(result: Result, reference: Result | None, is_reference: bool) -> list[str]:
    comparison = paired(result.values, reference.values) if reference and not is_reference else None
    if comparison is None:
        return [NONE, NONE, NONE]
    mean, low, high = comparison.difference
    return [f"{mean:+.3f}", _range(low, high, "+"), f"{comparison.p:.3f}"]


def _name(setting: Setting, arm: str) -> str:
    return f"**{arm}**" if arm == setting.reference else arm


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _range(low: float, high: float, sign: str = "") -> str:
    return f"{low:{sign}.3f} to {high:{sign}.3f}" if math.isfinite(low) else NONE


def _interval(found: Interval) -> str:
    spread = f" [{found.low:.3f}, {found.high:.3f}]" if math.isfinite(found.low) else ""
    return f"{found.mean:.3f}{spread}"


def _score(value: float) -> str:
    if not math.isfinite(value):
        return NONE
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.2f}"


def _number(values: Sequence[float]) -> str:
    return f"{np.mean(values):.0f}" if all(map(math.isfinite, values)) else NONE


def _level(values: Sequence[float]) -> str:
    median, count = reached(values), sum(map(math.isfinite, values))
    return f"{median:.0f} ({count}/{len(values)})" if math.isfinite(median) else f"never ({count}/{len(values)})"


def _seeds(count: int, setting: Setting, arm: str) -> str:
    return f"{count} of {setting.seeds_of(arm)} seeds"
