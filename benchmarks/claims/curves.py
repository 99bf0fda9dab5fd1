"""Learning curves of all arms of a claims file, one column of panels a setting, and the metric over settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.claims.records import Records, Row, read
from benchmarks.claims.spec import Claims, Setting
from benchmarks.claims.stats import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = [f"C{index}" for index in range(10)]
_STYLES = ["-", "--", ":", "-."]

Floats = NDArray[np.float64]
Points = Mapping[str, Mapping[float, Interval]]  # by arm and the setting's number


def draw(claims: Claims, records: Records) -> bool:
    """Draw the picture and say whether there was anything to draw."""
    rows = read(records.curves)
    if not rows:
        return False
    settings, tall = list(claims.settings.values()), 1 + len(claims.extra_curves)
    figure = Figure(figsize=(4.8 * len(settings) + 1.6, 3.0 * tall), layout="constrained")
    panels = figure.subplots(tall, len(settings), squeeze=False)
    looks = _looks(claims)
    for column, setting in enumerate(settings):
        for axis, metric in zip(panels[:, column], [setting.curve, *claims.extra_curves], strict=True):
            _panel(axis, setting, metric, [row for row in rows if row["setting"] == setting.name], looks)
    shown = dict(pair[::-1] for axis in panels.flat for pair in zip(*axis.get_legend_handles_labels(), strict=True))
    if shown:
        order = [arm for arm in looks if arm in shown]
        figure.legend([shown[arm] for arm in order], order, loc="outside right upper", fontsize="small")
    records.picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(records.picture, dpi=110)
    return True


def draw_sweep(claims: Claims, points: Points, metric: str, path: Path) -> bool:
    """Draw means and intervals of a metric over the sweep's numbers and say whether there was anything to draw."""
    if claims.sweep is None or not any(points.values()):
        return False
    figure, looks = Figure(figsize=(5.6, 3.6), layout="constrained"), _looks(claims)
    axis = figure.subplots()
    for arm, curve in points.items():
        if not curve:
            continue
        colour, style = looks[arm]
        numbers, (mean, low, high) = list(curve), np.array(list(curve.values())).T
        bars = np.maximum(0.0, [mean - low, high - mean])  # NaN, and so no bar, where there is one seed
        axis.errorbar(numbers, mean, bars, fmt=style, color=colour, marker="o", markersize=4, capsize=3, label=arm)
    ticks = list(claims.sweep.settings.values())
    if min(ticks) > 0:
        axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set(xlabel=claims.sweep.title, ylabel=metric)
    axis.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return True


def _looks(claims: Claims) -> dict[str, tuple[str, str]]:
    """Colour and line style of every arm that runs."""
    arms = [name for name in claims.arms if any(name in setting.arms for setting in claims.settings.values())]
    return {arm: (_COLOURS[index % 10], _STYLES[index // 10 % 4]) for index, arm in enumerate(arms)}


def _panel(axis: Axes, setting: Setting, metric: str, rows: Sequence[Row], looks: dict[str, tuple[str, str]]) -> None:
    """Mean over seeds and range of the seeds; secondary arms are thin and lie behind."""
    for arm in setting.secondary + setting.core:
        curves = seed_curves([row for row in rows if row["arm"] == arm], metric)
        if not curves:
            continue
        grid, values = on_one_grid(curves)
        core, (colour, style) = arm in setting.core, looks[arm]
        width = 2.0 if core else 0.8
        axis.plot(grid, values.mean(axis=0), style, color=colour, linewidth=width, marker=".", markersize=3, label=arm)
        band = 0.18 if core else 0.06
        axis.fill_between(grid, values.min(axis=0), values.max(axis=0), color=colour, alpha=band, linewidth=0)
    axis.set(title=f"{setting.name}: {metric}", xlabel="episodes, probes included")
    axis.grid(alpha=0.3)


def seed_curves(rows: Sequence[Row], metric: str) -> list[tuple[Floats, Floats]]:
    """Episodes and values of one arm, seed by seed, where the metric was measured."""
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row.get(metric):
            points[row["seed"]].append((float(row["episodes"]), float(row[metric])))
    return [(np.array([x for x, _ in curve]), np.array([y for _, y in curve])) for curve in points.values()]


def on_one_grid(curves: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Curves interpolated where one has a point and all reach: episodes ``[points]``, values ``[seeds, points]``."""
    low, high = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[(grid >= low) & (grid <= high)]
    return grid, np.stack([np.interp(grid, x, y) for x, y in curves])
