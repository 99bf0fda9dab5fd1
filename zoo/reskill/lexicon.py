"""Actions by what they do for the task, so that what was learnt with a tomato can be said of an egg."""

from __future__ import annotations

import re
from collections.abc import Mapping

OTHER = "other"
TRY, AVOID = "try", "avoid"  # how advice begins
_SILENT = frozenset(("to", "from", "in", "on", "in/on", "with", "at", "the", "a", "an"))


def action_class(action: str, roles: Mapping[str, str]) -> str:
    """An action with the roles of its things: ``take tomato 1 from fridge 2`` becomes ``take target other``.

    Args:
        action: a verb, then things and places, numbered or not.
        roles: what the words of this task stand for, for example ``{"tomato": "target", "shelf": "destination"}``.
    """
    verb, *words = action.lower().split() or [""]
    kinds = (re.sub(r"\d+$", "", word) for word in words)
    return " ".join([verb, *(roles.get(kind, OTHER) for kind in kinds if kind and kind not in _SILENT)])
