"""Actions by what they do for the task, so that what was learnt with a tomato can be said of an egg."""

from __future__ import annotations

import re
from collections.abc import Mapping

ROLES = ("target", "destination", "station")  # what is asked for, where it belongs, where it is treated
OTHER = "other"
TRY, AVOID = "try", "avoid"  # how advice begins
_SILENT = frozenset(("to", "from", "in", "on", "in/on", "with", "at", "the", "a", "an"))
_SLOT = re.compile(rf"\{{({'|'.join(ROLES)})\}}")


def action_class(action: str, roles: Mapping[str, str]) -> str:
    """An action with slots for the things that matter: ``take tomato 1 from fridge 2`` becomes ``take {target} other``.

    Args:
        action: a verb, then things and places.
        roles: what the words of this task stand for, for example ``{"tomato": "target", "shelf1": "destination"}``.
    """
    verb, *words = action.lower().split() or [""]
    return " ".join([verb, *(_named(word, roles) for word in words if word not in _SILENT and not word.isdigit())])


def _named(word: str, roles: Mapping[str, str]) -> str:
    return f"{{{roles[word]}}}" if word in roles else OTHER


def fill(text: str, roles: Mapping[str, str]) -> str | None:
    """A text with the words of a task in its slots, the first of a role; ``None`` if the task has nothing for one of them."""
    words = {role: word for word, role in reversed(list(roles.items()))}
    if not {slot.group(1) for slot in _SLOT.finditer(text)} <= words.keys():
        return None
    return _SLOT.sub(lambda slot: words[slot.group(1)], text)
