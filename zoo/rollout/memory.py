"""Managers that carry a memory over from one stretch of context to the next.

All of them act within ``max_tokens``. At a boundary the policy may also read a question and write an answer; that part of a
row is at most ``boundary_tokens`` long, so no row is longer than ``max_tokens + boundary_tokens``.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import torch

from zoo.errors import ConfigError
from zoo.policy.loading import packaged
from zoo.rollout.context import ContextManager, Opening, Step, View
from zoo.rollout.phrases import tagged
from zoo.rollout.protocol import Info, Protocol
from zoo.rollout.trajectory import Boundary, Record


class _Asking(ContextManager):
    """What managers with a boundary share.

    Args:
        max_tokens: the policy never acts with more than this in view, its reply included.
        boundary_tokens: further tokens for the last observation, the question about the memory, and its answer.
        max_rounds: boundaries after which the episode ends as ``overlong``.
    """

    def __init__(self, max_tokens: int = 512, boundary_tokens: int = 256, max_rounds: int = 5) -> None:
        super().__init__(max_tokens)
        for name, value in {"boundary_tokens": boundary_tokens, "max_rounds": max_rounds}.items():
            if value < 1:
                raise ConfigError(f"context.{name} must be at least 1, not {value}")
        self.boundary_tokens, self.max_rounds = boundary_tokens, max_rounds

    def words(self, protocol: Protocol) -> tuple[str, ...]:
        return protocol.phrases.words


@dataclass
class _AskingView(View):
    """Asks at a boundary, and carries the turn that did not fit over raw."""

    carried: list[int] = field(default_factory=list)

    def room(self) -> int:
        if not self.asking:
            return super().room()
        manager: Any = self.manager
        return min(manager.answer_tokens, manager.max_tokens + manager.boundary_tokens - len(self.segment.ids))

    def ask(self, question: str, text: str, info: Info, ids: list[int]) -> Step:
        """Let the policy read the observation with a question behind it."""
        manager: Any = self.manager
        if len(self.boundaries) == manager.max_rounds:
            return Step(finish="overlong")
        self.carried = [*self.last, *ids]
        # Not the admissible actions: what is wanted now is no action.
        asked = self.opening.protocol.observation(self.opening.tokenizer, f"{text}\n\n{question}", {})
        longest = manager.max_tokens + manager.boundary_tokens - manager.answer_tokens
        if len(self.segment.ids) + len(asked) > longest:
            return Step(finish="overlong")
        self.segment.read(asked)
        self.asking = True
        return Step(self.last[-1:] + asked)

    def span(self, ids: list[int], text: str, tag: str) -> tuple[range, str]:
        """Which of ``ids`` lie in ``<tag>...</tag>``, tags included, and what stands between; empty if there is no such block."""
        block = tagged(text, tag)
        if block is None:
            return range(0), ""
        start, end, content = block
        # By the lengths of decoded prefixes, as tokens need not end where tags do.
        lengths = range(len(ids) + 1)
        first = bisect_right(lengths, start, key=lambda size: len(self.opening.decode(ids[:size]))) - 1
        last = bisect_left(lengths, end, key=lambda size: len(self.opening.decode(ids[:size])))
        return range(max(first, 0), min(last, len(ids))), " ".join(content.split())


@dataclass
class _SummaryView(_AskingView):
    @property
    def wants(self) -> Literal["", "finding", "selection", "summary"]:
        return "summary" if self.asking else ""

    def overflow(self, text: str, info: Info, ids: list[int], action: str | None) -> Step:
        manager: Any = self.manager
        question = self.opening.protocol.phrases.summarise.format(limit=manager.answer_tokens)
        return self.ask(question, text, info, ids)

    def answer(self, ids: list[int], logprobs: list[float], text: str) -> Step:
        self.asking = False
        span, summary = self.span(ids, text, "summary")
        tags = {"summary": [int(place in span) for place in range(len(ids))]}
        self.segment.write(ids, logprobs, tags)
        valid = bool(summary)
        self.boundaries.append(Boundary(len(self.segments) - 1, self.turns - 1, text=text, valid=valid))
        shown = self.opening.protocol.phrases.summary.format(summary=summary)
        return self.restart(shown if summary else "", self.carried)


class RollingSummary(_Asking):
    """At an overflow the policy sums up what it knows and goes on from task, summary and latest turn (SUPO, arXiv 2510.06727).

    Args:
        summary_tokens: longest summary, its tags and the end of turn included.
        max_tokens: as in :class:`zoo.rollout.context.ContextManager`.
        boundary_tokens: further tokens at a boundary for the last observation, question and answer.
        max_rounds: boundaries after which the episode ends as ``overlong``.
    """

    def __init__(self, summary_tokens: int = 128, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 1 <= summary_tokens < self.boundary_tokens:
            raise ConfigError(f"context.summary_tokens must be below boundary_tokens={self.boundary_tokens}")
        self.answer_tokens = summary_tokens

    def open(self, opening: Opening) -> View:
        return _SummaryView(self, opening)

    def instructions(self, protocol: Protocol) -> str:
        return protocol.phrases.summaries


@dataclass
class _OverwriteView(_SummaryView):
    def read(self, text: str, info: Info, action: str | None) -> Step:
        return self.overflow(text, info, self.observation(text, info), action)


class OverwriteMemory(RollingSummary):
    """The memory is written anew after every turn, and is all that is left of the past (MemAgent, arXiv 2507.02259)."""

    def __init__(self, max_rounds: int = 64, **kwargs: Any) -> None:
        super().__init__(max_rounds=max_rounds, **kwargs)

    def open(self, opening: Opening) -> View:
        return _OverwriteView(self, opening)


@dataclass
class _SelectiveView(_AskingView):
    archive: list[Record] = field(default_factory=list)
    pending: Record | None = None  # the latest turn, whose finding comes with the next reply

    @property
    def wants(self) -> Literal["", "finding", "selection", "summary"]:
        return "selection" if self.asking else "finding" if self.pending else ""

    def write(self, ids: list[int], logprobs: list[float], text: str) -> str:
        """As everywhere; the finding in the reply belongs to the turn before and goes into the archive."""
        span, finding = self.span(ids, text, "finding")
        source = [0 if place in span else self.turns + 1 for place in range(len(ids))]
        about = self.pending.turn + 1 if self.pending else 0
        self.last, self.turns = ids, self.turns + 1
        found = [about if place in span else 0 for place in range(len(ids))]
        self.segment.write(ids, logprobs, {"source": source, "finding": found})
        if self.pending:
            self.pending.finding = finding[: self._manager.finding_length]
            self.archive.append(self.pending)
            self.pending = None
        block = tagged(text, "finding")
        return text[: block[0]] + text[block[1] :] if block else text

    def read(self, text: str, info: Info, action: str | None) -> Step:
        self.pending = Record(self.turns - 1, (action or "-")[: self._manager.action_length])
        return super().read(text, info, action)

    def overflow(self, text: str, info: Info, ids: list[int], action: str | None) -> Step:
        phrases = self.opening.protocol.phrases
        question = phrases.select.format(
            records=phrases.show(self.archive), limit=self._manager.choose, recent=self._manager.recent
        )
        return self.ask(question, text, info, ids)

    def answer(self, ids: list[int], logprobs: list[float], text: str) -> Step:
        self.asking = False
        span, content = self.span(ids, text, "selection")
        tag = [int(place in span) for place in range(len(ids))]
        self.segment.write(ids, logprobs, {"selection": tag})
        return self.rebuild(self.opening.protocol.phrases.turns(content, self.archive), text, valid=len(span) > 0)

    def rebuild(self, asked: list[int], text: str = "", valid: bool = True) -> Step:
        """Go on from the task, the records of ``asked`` turns as far as they may be kept, and the latest turn raw."""
        chosen, kept = repair(
            asked, [record.turn for record in self.archive], self._manager.choose, self._manager.recent
        )
        boundary = Boundary(len(self.segments) - 1, self.turns - 1, list(self.archive), chosen, kept, text, valid)
        self.boundaries.append(boundary)
        phrases = self.opening.protocol.phrases
        shown = [record for record in self.archive if record.turn in kept]
        notes = phrases.records.format(records=phrases.show(shown)) if shown else ""
        return self.restart(notes, self.carried)

    @property
    def _manager(self) -> SelectiveMemory:
        assert isinstance(self.manager, SelectiveMemory)
        return self.manager


def repair(asked: list[int], archived: list[int], choose: int, recent: int) -> tuple[list[int], list[int]]:
    """Turn an answer of the policy into a selection (ECHO's repair operator).

    Args:
        asked: turns as named by the policy.
        archived: turns there are records of, ascending.
        choose: how many of the named turns may stay; the first ones do.
        recent: how many of the latest records stay in any case.

    Returns:
        The turns the policy chose, in its order, and all that are kept, ascending.
    """
    known = set(archived)
    chosen = [turn for turn in dict.fromkeys(asked) if turn in known][:choose]
    return chosen, sorted({*chosen, *(archived[-recent:] if recent else [])})


class SelectiveMemory(_Asking):
    """Turns are kept as records with their numbers; at an overflow the policy chooses which of them it sees next (ECHO).

    The policy sums up each observation in one sentence at the start of its next reply. All records stay in the archive, also
    those that were not chosen.

    Args:
        choose: how many records the policy may choose (the paper's S).
        recent: how many of the latest records are kept anyway (K).
        selection_tokens: longest answer to the question which to keep.
        finding_length: characters a finding may have.
        action_length: characters an action may have in a record.
        max_tokens: as in :class:`zoo.rollout.context.ContextManager`.
        boundary_tokens: further tokens at a boundary for the last observation, question and answer.
        max_rounds: boundaries after which the episode ends as ``overlong``.
    """

    def __init__(
        self,
        choose: int = 8,
        recent: int = 3,
        selection_tokens: int = 96,
        finding_length: int = 300,
        action_length: int = 600,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if choose < 0 or recent < 0:
            raise ConfigError("context.choose and context.recent must not be negative")
        if not 1 <= selection_tokens < self.boundary_tokens:
            raise ConfigError(f"context.selection_tokens must be below boundary_tokens={self.boundary_tokens}")
        self.choose, self.recent, self.answer_tokens = choose, recent, selection_tokens
        self.finding_length, self.action_length = finding_length, action_length

    def open(self, opening: Opening) -> View:
        return _SelectiveView(self, opening)

    def instructions(self, protocol: Protocol) -> str:
        return protocol.phrases.findings


@dataclass
class _StaticView(_SelectiveView):
    def overflow(self, text: str, info: Info, ids: list[int], action: str | None) -> Step:
        manager: Any = self.manager
        if len(self.boundaries) == manager.max_rounds:
            return Step(finish="overlong")
        self.carried = [*self.last, *ids]
        return self.rebuild(manager.pick(self.archive, self.opening.decode(self.segments[0].ids), text))


class StaticSelection(SelectiveMemory):
    """Records as in :class:`SelectiveMemory`, but nobody is asked which to keep.

    Args:
        by: ``recent`` (the latest ones only), ``random``, or ``embedding`` (nearest to task and latest observation).
        encoder: of ``embedding``: name or folder of a sentence-transformers model, or ``pkg:package/folder`` for one inside an
            installed package.
        selection_tokens: of :class:`SelectiveMemory`; nobody is asked here.
        **kwargs: of :class:`SelectiveMemory`.
    """

    def __init__(
        self,
        by: Literal["recent", "random", "embedding"] = "embedding",
        encoder: str | None = None,
        selection_tokens: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(selection_tokens=selection_tokens, **kwargs)
        if by == "embedding" and encoder is None:
            raise ConfigError("context.encoder: name a sentence-transformers model, which by=embedding needs")
        self.by, self.encoder = by, encoder

    def open(self, opening: Opening) -> View:
        return _StaticView(self, opening)

    def pick(self, records: list[Record], task: str, observation: str) -> list[int]:
        """The turns to keep besides the recent ones."""
        older = records[: len(records) - self.recent]
        if self.by == "recent" or not older:
            return [record.turn for record in records[-(self.choose + self.recent) :]]
        if self.by == "random":
            rng = random.Random(f"{task} {observation}")
            return [record.turn for record in rng.sample(older, min(self.choose, len(older)))]
        assert self.encoder is not None
        query = _embedding(self.encoder, f"{task} {observation}")
        found = torch.stack([_embedding(self.encoder, f"{record.action} {record.finding}") for record in older])
        best = (found @ query).topk(min(self.choose, len(older))).indices
        return [older[index].turn for index in best.tolist()]


@lru_cache(maxsize=2)
def _encoder(name: str) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(packaged(name)) if name.startswith("pkg:") else name)


@lru_cache(maxsize=20_000)
def _embedding(encoder: str, text: str) -> torch.Tensor:
    return torch.nn.functional.normalize(_encoder(encoder).encode(text, convert_to_tensor=True), dim=-1)
