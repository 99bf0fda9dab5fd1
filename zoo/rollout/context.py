"""What a policy still sees of an episode: context managers under a token budget.

A manager is configuration and makes one :class:`View` per episode. A view turns the episode into segments: each holds exactly
the tokens the policy saw in one stretch, and is one training row. Managers that ask the policy about its memory are in
``memory.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from transformers import PreTrainedTokenizerBase

from zoo.errors import ConfigError
from zoo.rollout.protocol import Info, Protocol
from zoo.rollout.trajectory import Boundary, Segment


class Step(NamedTuple):
    """What follows a reply: ids to be fed behind it, a new segment to be started with them, or the episode's end.

    Where ``kept`` is a number, ``ids`` is all that is in view from now on, and begins with as many tokens that were in view.
    """

    ids: list[int] = []
    starts: bool = False
    finish: str = ""
    kept: int | None = None


@dataclass
class Opening:
    """What an episode starts from, for making its prompt, also again at a boundary.

    Attributes:
        segment: makes the first part of a segment, the task, from the notes that the manager wants in it; or, from another
            observation and its info, a prompt in place of the task's.
        protocol: how text becomes tokens.
        tokenizer: of the policy.
        first: the first observation.
    """

    segment: Callable[..., Segment]
    protocol: Protocol
    tokenizer: PreTrainedTokenizerBase
    first: str

    def decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))


@dataclass
class View:
    """One episode as its policy sees it.

    Attributes:
        segments: stretches of context, the last one running.
        boundaries: what happened between them.
        turns: replies written so far that were meant for the world.
        asking: whether the next reply is for the memory, not for the world.
    """

    manager: ContextManager
    opening: Opening
    segments: list[Segment] = field(default_factory=list)
    boundaries: list[Boundary] = field(default_factory=list)
    turns: int = 0
    asking: bool = False
    last: list[int] = field(default_factory=list)  # ids of the latest reply

    def __post_init__(self) -> None:
        self.segments = [self.opening.segment(self.manager.instructions(self.opening.protocol))]

    @property
    def segment(self) -> Segment:
        """The running segment."""
        return self.segments[-1]

    @property
    def wants(self) -> Literal["", "finding", "selection", "summary"]:
        """What the next reply should say to the memory."""
        return ""

    def room(self) -> int:
        """Tokens the next reply may take."""
        return self.manager.max_tokens - len(self.segment.ids)

    def write(self, ids: list[int], logprobs: list[float], text: str) -> str:
        """Append a reply and return the part of its text that is for the world."""
        self.last, self.turns = ids, self.turns + 1
        self.segment.write(ids, logprobs, {"source": [self.turns] * len(ids)})
        return text

    def read(self, text: str, info: Info, action: str | None) -> Step:
        """Show what the world answered to ``action`` (``None``: there was none in the reply)."""
        ids = self.observation(text, info)
        if len(self.segment.ids) + len(ids) + self.manager.reply_room(self.opening.protocol) > self.manager.max_tokens:
            return self.overflow(text, info, ids, action)
        self.segment.read(ids)
        return Step(self.last[-1:] + ids)

    def observation(self, text: str, info: Info) -> list[int]:
        return self.opening.protocol.observation(self.opening.tokenizer, text, info)

    def overflow(self, text: str, info: Info, ids: list[int], action: str | None) -> Step:
        """What happens where the observation would burst the budget."""
        return Step(finish="context_full")

    def answer(self, ids: list[int], logprobs: list[float], text: str) -> Step:
        """Take a reply that was asked for; see ``asking``."""
        raise NotImplementedError(f"{type(self).__name__} asks nothing")

    def restart(self, notes: str, carried: list[int]) -> Step:
        """Begin a new segment with the task, ``notes`` and some raw tokens that were seen before."""
        instructions = self.manager.instructions(self.opening.protocol)
        segment = self.opening.segment(f"{instructions}\n\n{notes}" if instructions else notes)
        segment.read(carried)
        if len(segment.ids) + self.manager.reply_room(self.opening.protocol) > self.manager.max_tokens:
            return Step(finish="overlong")
        self.segments.append(segment)
        return Step(list(segment.ids), starts=True)


class ContextManager(ABC):
    """Decides what stays in view.

    Args:
        max_tokens: the policy never acts with more than this in view, its reply included.
    """

    def __init__(self, max_tokens: int = 512) -> None:
        if max_tokens < 2:
            raise ConfigError(f"context.max_tokens must be at least 2, not {max_tokens}")
        self.max_tokens = max_tokens

    @abstractmethod
    def open(self, opening: Opening) -> View:
        """The view of a new episode."""

    def instructions(self, protocol: Protocol) -> str:
        """What the first prompt must tell the policy about its memory."""
        return ""

    def words(self, protocol: Protocol) -> tuple[str, ...]:
        """Words a word-level vocabulary needs besides those of world and protocol."""
        return ()

    def reply_room(self, protocol: Protocol) -> int:
        """Tokens that must be left for the next reply."""
        return protocol.max_new_tokens


class AppendOnly(ContextManager):
    """Everything stays in view; an episode that does not fit ends as ``context_full``."""

    def open(self, opening: Opening) -> View:
        return View(self, opening)

    def reply_room(self, protocol: Protocol) -> int:
        return 1  # the last reply may use what is left


@dataclass
class _WindowView(View):
    raw: list[list[int]] = field(default_factory=list)  # reply and observation of each turn in view

    def read(self, text: str, info: Info, action: str | None) -> Step:
        self.raw.append([*self.last, *self.observation(text, info)])
        return super().read(text, info, action)

    def overflow(self, text: str, info: Info, ids: list[int], action: str | None) -> Step:
        manager: Any = self.manager
        if len(self.boundaries) == manager.max_rounds:
            return Step(finish="overlong")
        budget = int(manager.keep * manager.max_tokens)
        while len(self.raw) > 1 and sum(map(len, self.raw)) > budget:
            self.raw.pop(0)
        kept = list(range(self.turns - len(self.raw), self.turns))
        self.boundaries.append(Boundary(len(self.segments) - 1, self.turns - 1, kept=kept))
        return self.restart("", [token for turn in self.raw for token in turn])


class SlidingWindow(ContextManager):
    """The task stays pinned; of the turns, the latest stay, cut at turn borders.

    Args:
        max_tokens: as everywhere.
        keep: share of the budget that the turns kept at an overflow may take; the latest turn always stays.
        max_rounds: overflows after which the episode ends as ``overlong``.
    """

    def __init__(self, max_tokens: int = 512, keep: float = 0.5, max_rounds: int = 5) -> None:
        super().__init__(max_tokens)
        if not 0 < keep < 1:
            raise ConfigError(f"context.keep is a share between 0 and 1, not {keep}")
        self.keep, self.max_rounds = keep, max_rounds

    def open(self, opening: Opening) -> View:
        return _WindowView(self, opening)


def state(first: str, turns: Sequence[tuple[str, str]], protocol: Protocol) -> str:
    """An episode so far in one text: its first observation, then actions and what the world answered.

    Args:
        first: the first observation.
        turns: the latest actions, ``""`` where a reply held none, with the observations that followed.
        protocol: has the words for it.
    """
    acted = protocol.phrases.acted
    return "\n".join([first, *(acted.format(action=action, observation=seen) for action, seen in turns)])


@dataclass
class _LatestView(View):
    acted: list[tuple[str, str]] = field(default_factory=list)

    def read(self, text: str, info: Info, action: str | None) -> Step:
        manager: Any = self.manager
        self.acted = [*self.acted, (action or "", text)][-manager.turns :]
        shown = state(self.opening.first, self.acted, self.opening.protocol)
        segment = self.opening.segment("", shown, info)
        if len(segment.ids) + manager.reply_room(self.opening.protocol) > manager.max_tokens:
            return Step(finish="context_full")
        # At least the last tokens are fed: those of before may not be in the cache, those of after must be heard.
        pairs = list(zip(self.segment.ids[:-1], segment.ids[:-1], strict=False))
        alike = next((place for place, (old, new) in enumerate(pairs) if old != new), len(pairs))
        self.segments.append(segment)
        ids = list(segment.ids)
        # Rows that are fed together cost what the longest of them costs.
        return Step(ids, kept=alike) if 2 * alike >= len(ids) else Step(ids, starts=True)


class LatestTurns(ContextManager):
    """Every turn is asked for by a prompt of its own: the task, and the latest actions with what followed, no thoughts.

    The prompt of verl-agent and of the papers built on it; what is learnt from single states is then asked the same way in
    episodes. Each turn is a training row.

    Args:
        max_tokens: as everywhere.
        turns: how many stay in view.
    """

    def __init__(self, max_tokens: int = 512, turns: int = 4) -> None:
        super().__init__(max_tokens)
        if turns < 1:
            raise ConfigError(f"context.turns must be at least 1, not {turns}")
        self.turns = turns

    def open(self, opening: Opening) -> View:
        return _LatestView(self, opening)

    def words(self, protocol: Protocol) -> tuple[str, ...]:
        return tuple(word for word in protocol.phrases.acted.split() if "{" not in word)
