"""One evaluated episode as a picture: ``python -m benchmarks.episode trajectories.jsonl docs/echo_episode.png [LINE]``.

Every box is a token. Green is credit, grey was written by the policy and gets none, white is what it was shown; below a
segment stand the records of its boundary, those that were kept in bold. ``zoo view`` shows the same with all detail.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextPath

from zoo.viewer import read

_WIDTH, _LINE, _SIZE = 1000.0, 17.0, 9.0  # points
_FONT, _BOLD = FontProperties(family="DejaVu Sans Mono"), FontProperties(family="DejaVu Sans Mono", weight="bold")


def paint(episode: dict[str, Any], target: Path) -> None:
    """Draw an episode: the line of a log as :func:`callbacks.reports.describe` writes it."""
    boxes: list[tuple[str, float, float, Any, bool]] = []  # text, left, line, colour, bold
    place = [0.0, 0.0]

    def put(text: str, colour: Any, bold: bool = False) -> None:
        width = TextPath((0, 0), "m" * (len(text) + 1), size=_SIZE, prop=_FONT).get_extents().width
        if place[0] + width > _WIDTH:
            place[:] = [0.0, place[1] + 1]
        boxes.append((text, place[0], place[1], colour, bold))
        place[0] += width

    boundaries = {boundary["segment"]: boundary for boundary in episode["boundaries"]}
    for number, segment in enumerate(episode["segments"]):
        put(f"context {number + 1}:", "none", True)
        for token, written, credit in zip(segment["tokens"], segment["written"], segment["credit"], strict=True):
            put(token, (0.13, 0.63, 0.35, min(abs(credit), 1.0)) if credit else "0.85" if written else "none")
        place[:] = [0.0, place[1] + 1]
        if boundary := boundaries.get(number):
            put("records, kept ones bold:", "none", True)
            for record in boundary["records"]:
                kept = record["turn"] in boundary["kept"]
                put(f"t{record['turn']} {record['action']} {record['finding']};", "none", kept)
            place[:] = [0.0, place[1] + 1.6]
    height = (place[1] + 1) * _LINE
    figure = Figure(figsize=(_WIDTH / 72 + 0.3, height / 72 + 0.3))
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    axes.set(xlim=(0, _WIDTH), ylim=(height, 0))
    axes.axis("off")
    for text, left, line, colour, bold in boxes:
        width = TextPath((0, 0), "m" * len(text), size=_SIZE, prop=_FONT).get_extents().width
        axes.add_patch(Rectangle((left, line * _LINE), width + 1, _LINE * 0.85, color=colour, linewidth=0))
        ink = "black" if colour != "none" or bold else "0.35"
        axes.text(left, line * _LINE + 11, text, fontsize=_SIZE, fontproperties=_BOLD if bold else _FONT, color=ink)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=110)


def main(log: str, target: str, line: str = "") -> None:
    """Draw the given line (from 1), or the first success with two boundaries or more."""
    episodes = read(Path(log))
    long = (episode for episode in episodes if episode["success"] and len(episode["boundaries"]) >= 2)
    paint(episodes[int(line) - 1] if line else next(long, episodes[0]), Path(target))


if __name__ == "__main__":
    main(*sys.argv[1:])
