"""Plain text for ``zoo list`` and ``zoo show``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from zoo.cards import Card

_HEADINGS = ("name", "class", "task", "parameters", "metric", "size")
_RIGHT = {"parameters", "size"}


def format_list(cards: Iterable[Card]) -> str:
    """One aligned line per card under a line of headings."""
    rows = [_HEADINGS, *(_row(card) for card in cards)]
    if len(rows) == 1:
        return "no checkpoints match"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_line(row, widths) for row in rows)


def format_card(card: Card) -> str:
    """Everything a person wants to know of a checkpoint; word lists are counted, not shown."""
    facts = {
        "class": card.class_name,
        "task": card.task,
        "parameters": f"{card.parameters:,}",
        "metric": _metric(card.metric, digits=4),
        "measured by": card.metric.get("command", ""),
        "episodes": card.metric.get("episodes", ""),
        "licence": card.licence,
        "source": card.source,
        "size": _size(card.bytes),
        "sha256": card.sha256,
        "tied": ", ".join(f"{alias} = {kept}" for alias, kept in card.tied.items()),
    }
    width = max(map(len, facts))
    lines = [card.name, card.summary, "", *(f"{key:<{width}}  {value}" for key, value in facts.items() if value != "")]
    for title in ("architecture", "tokenizer", "hparams", "training"):
        if values := getattr(card, title):
            lines += ["", title, *(f"  {key}: {_value(value)}" for key, value in values.items())]
    return "\n".join(lines)


def _row(card: Card) -> tuple[str, ...]:
    count = _scaled(card.parameters, ("", " k", " M", " G"))
    return card.name, card.class_name, card.task, count, _metric(card.metric, digits=3), _size(card.bytes)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    columns = zip(_HEADINGS, row, widths, strict=True)
    return "  ".join(
        cell.rjust(width) if head in _RIGHT else cell.ljust(width) for head, cell, width in columns
    ).rstrip()


def _metric(metric: dict[str, Any], digits: int) -> str:
    if not metric:
        return "not measured"
    value, low, high = (f"{metric[key]:.{digits}f}" for key in ("value", "low", "high"))
    return f"{metric['name']} {value} [{low}, {high}]"


def _size(count: int) -> str:
    return _scaled(count, (" B", " kB", " MB", " GB"))


def _scaled(number: float, units: Sequence[str]) -> str:
    power = 0
    while number >= 999.5 and power < len(units) - 1:
        number, power = number / 1000, power + 1
    return f"{number:.3g}{units[power]}" if power else f"{number:.0f}{units[0]}"


def _value(value: Any) -> str:
    if isinstance(value, list) and len(value) > 10:
        return f"{len(value)} entries"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
