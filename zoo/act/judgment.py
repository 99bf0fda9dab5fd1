"""What a decision at an expert's state is worth (arXiv 2603.08706, version 2; reward values: dossier 1.3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Worth(NamedTuple):
    """Parts of the reward ``R = R_acc + R_adm + R_fmt``.

    The paper names the parts; the values are known from a secondary source only.

    Attributes:
        expert: for the expert's action.
        admissible: for another action that is possible there; never on top of ``expert``.
        unreadable: where the reply holds no action.
    """

    expert: float = 1.0
    admissible: float = 0.1
    unreadable: float = -0.5


def canonical(action: str) -> str:
    """The form in which actions are compared and shown as candidates: lower case, single spaces, no closing full stop."""
    return " ".join(action.lower().split()).rstrip(" .")


def decision_reward(action: str | None, expert: str, admissible: Iterable[str], worth: Worth) -> float:
    """Reward of a reply whose action is ``action`` (``None``: it holds none); what was thought before it plays no part."""
    if action is None or not canonical(action):
        return worth.unreadable
    if canonical(action) == canonical(expert):
        return worth.expert
    return worth.admissible if canonical(action) in map(canonical, admissible) else 0.0


def alternatives(proposed: Iterable[str | None], expert: str, limit: int) -> list[str]:
    """The first ``limit`` different alternatives to the expert's action, in canonical form; exact matches are dropped."""
    found = dict.fromkeys(canonical(action) for action in proposed if action is not None)
    return [action for action in found if action and action != canonical(expert)][:limit]
