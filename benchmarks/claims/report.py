"""Tables, checks and pictures out of the recorded runs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.claims.curves import draw
from benchmarks.claims.records import LEVEL, Records, Row
from benchmarks.claims.spec import Arm, Bound, Check, Claims, Condition, Setting, Slower, SpecError
from benchmarks.claims.stats import interval, paired, reached

NONE = "-"
_LEVEL = f"{100 * LEVEL:.0f} %"


@dataclass(frozen=True)
class Result:
    """The runs of one arm in one setting."""

    values: dict[int, float]  # metric, by seed
    episodes: list[float]
    tokens: list[float]
    cpu_seconds: list[float]
    to_level: list[float]  # infinite where a seed never reached it

    @classmethod
    def of(cls, rows: Sequence[Row], metric: str) -> Result:
        def column(name: str, empty: float = math.nan) -> list[float]:
            return [float(row[name]) if row.get(name) else empty for row in rows]

        scores = column(metric.split("/", 1)[1])
        return cls(
            dict(zip((int(row["seed"]) for row in rows), scores, strict=True)),
            column("episodes"),
            column("generated_tokens"),
            column("cpu_seconds"),
            column(f"episodes_to_{round(100 * LEVEL)}", math.inf),
        )


Results = dict[str, Result]  # by arm; arms without a run are absent


def results_of(claims: Claims, setting: Setting, rows: Sequence[Row]) -> Results:
    """The recorded runs of a setting, arm by arm."""
    found = {arm: [row for row in rows if (row["setting"], row["arm"]) == (setting.name, arm)] for arm in setting.arms}
    return {arm: Result.of(own, setting.metric) for arm, own in found.items() if own}


def table(setting: Setting, results: Results) -> str:
    """One setting as a markdown table, core arms first."""
    head = ["arm", "seeds", setting.metric, "95 %", f"minus {setting.reference}", "95 %", "p"]
    head += ["episodes", "tokens", "CPU-s", f"episodes to {_LEVEL}"]
    lines = [_line(head), _line(["---", *["--:"] * (len(head) - 1)])]
    for arm in setting.arms:
        result, wanted = results.get(arm), setting.seeds_of(arm)
        name = f"**{arm}**" if arm == setting.reference else arm
        if result is None:
            lines.append(_line([name, f"0/{wanted}", *[NONE] * (len(head) - 2)]))
            continue
        mean, low, high = interval(list(result.values.values()))
        cells = [name, f"{len(result.values)}/{wanted}", f"{mean:.3f}", _range(low, high)]
        cells += _difference(result, results.get(setting.reference), arm == setting.reference)
        cells += [_number(values) for values in (result.episodes, result.tokens, result.cpu_seconds)]
        lines.append(_line([*cells, _level(result.to_level)]))
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
    arm = results.get(condition.arm)
    if isinstance(condition, Bound):
        text = f"{condition.arm} {setting.metric} {condition.op} {condition.value:g}"
        if arm is None:
            return None, f"{text} (no runs)"
        mean = float(np.mean(list(arm.values.values())))
        holds = mean >= condition.value if condition.op == ">=" else mean <= condition.value
        return holds, f"{text} (is {mean:.3f}, {_seeds(len(arm.values), setting, condition.arm)})"
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


def render(claims: Claims, records: Records, picture: str | None) -> str:
    """The whole report as markdown.

    Args:
        claims: the claims file.
        records: its runs.
        picture: path of the curves as seen from the file the text is for, if there are any.
    """
    rows = list(records.done().values())
    results = {name: results_of(claims, setting, rows) for name, setting in claims.settings.items()}
    parts = []
    for name, setting in claims.settings.items():
        budget = f", {setting.budget_episodes} episodes for every arm" if setting.budget_episodes else ""
        title = f"{name}: {setting.title}" if setting.title else name
        parts.append(f"**{title}** (`{setting.config}`{budget})\n\n{table(setting, results[name])}")
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
    """Write table file and picture, put the tables into the readme, and return the text.

    Raises:
        SpecError: the readme has no markers.
    """
    drawn = draw(claims, records)
    text = render(claims, records, records.picture.name if drawn else None)
    records.markdown.parent.mkdir(parents=True, exist_ok=True)
    records.markdown.write_text(f"# {claims.title}\n\n{text}")
    if claims.readme:
        readme = records.root / claims.readme
        picture = os.path.relpath(records.picture, readme.parent) if drawn else None
        inject(readme, claims.name, render(claims, records, picture))
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


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _range(low: float, high: float, sign: str = "") -> str:
    return f"{low:{sign}.3f} to {high:{sign}.3f}" if math.isfinite(low) else NONE


def _number(values: Sequence[float]) -> str:
    return f"{np.mean(values):.0f}" if all(map(math.isfinite, values)) else NONE


def _level(values: Sequence[float]) -> str:
    median, count = reached(values), sum(map(math.isfinite, values))
    return f"{median:.0f} ({count}/{len(values)})" if math.isfinite(median) else f"never ({count}/{len(values)})"


def _seeds(count: int, setting: Setting, arm: str) -> str:
    return f"{count} of {setting.seeds_of(arm)} seeds"
