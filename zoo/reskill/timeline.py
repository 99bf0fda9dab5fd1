"""A picture of what became of each version: which skill came, was tested, was kept or dropped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from zoo.reskill.evolution import Decision
from zoo.reskill.skills import Add, Delete, Operation

_KEPT, _DROPPED = "tab:green", "tab:red"


def draw_timeline(history: Sequence[Decision], success: Sequence[tuple[int, float]], path: Path) -> None:
    """Above the success of training with both posterior means of every test, below the versions' operations.

    Args:
        history: decisions, in order; without any there is no picture.
        success: iterations and the share of episodes that succeeded in them.
        path: of the PNG.
    """
    from matplotlib.figure import Figure

    if not history:
        return
    lines = [label(decision) for decision in history]
    figure = Figure(figsize=(9, 3.2 + 0.19 * len(lines)), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, max(1.0, 0.19 * len(lines))])
    if success:
        above.plot(*zip(*success, strict=True), color="0.6", linewidth=1, label="success in training")
    for row, decision in enumerate(history):
        span, colour = (decision.started + 1, decision.iteration + 1), _KEPT if decision.accepted else _DROPPED
        if not math.isnan(decision.new):
            above.plot(span, [decision.new] * 2, color=colour, linewidth=2.5)
            above.plot(span, [decision.old] * 2, color="black", linewidth=1)
        below.plot(span, [row, row], color=colour, linewidth=4, solid_capstyle="butt")
        below.text(span[1] + 0.5, row, lines[row], va="center", fontsize=7, color=colour)
    above.plot([], [], color=_KEPT, linewidth=2.5, label="new version, kept")
    above.plot([], [], color=_DROPPED, linewidth=2.5, label="new version, dropped")
    above.plot([], [], color="black", linewidth=1, label="old version")
    above.legend(fontsize=7, loc="upper left")
    above.set(ylabel="success")
    above.grid(alpha=0.3)
    below.set(xlabel="iteration", yticks=[], ylim=(len(lines) - 0.4, -0.6))
    figure.savefig(path, dpi=120)


def label(decision: Decision) -> str:
    """What a version changes, in one line."""
    return ", ".join(map(_label, decision.bundle))


def _label(operation: Operation) -> str:
    if isinstance(operation, Add):
        return f"+ {operation.skill.name}"
    return f"{'-' if isinstance(operation, Delete) else '~'} {operation.name}"
