"""What a policy still sees of an episode: context managers under a token budget."""

from __future__ import annotations

from abc import ABC, abstractmethod

from zoo.rollout.trajectory import Segment


class ContextManager(ABC):
    """Decides how new tokens enter the running segment.

    Args:
        max_tokens: no segment ever gets longer than this, replies included.
    """

    def __init__(self, max_tokens: int = 512) -> None:
        if max_tokens < 2:
            raise ValueError(f"context.max_tokens must be at least 2, not {max_tokens}")
        self.max_tokens = max_tokens

    @abstractmethod
    def extend(self, segment: Segment, ids: list[int]) -> bool:
        """Read ``ids`` into the segment; false if they do not fit with room for one token of a reply."""

    def room(self, segment: Segment) -> int:
        """Tokens the next reply may take."""
        return self.max_tokens - len(segment.ids)


class AppendOnly(ContextManager):
    """Everything stays in view; an episode that does not fit ends as ``context_full``."""

    def extend(self, segment: Segment, ids: list[int]) -> bool:
        if len(segment.ids) + len(ids) >= self.max_tokens:
            return False
        segment.read(ids)
        return True
