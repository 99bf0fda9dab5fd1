"""What an episode leaves behind, from the task it was asked to the rows that are trained on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypedDict

from torch import Tensor

Split = Literal["train", "val", "test"]


class Task(NamedTuple):
    """A reproducible episode: the same seed and options make the same world.

    Attributes:
        seed: handed to ``env.reset``.
        split: ``train``, ``val`` or ``test``; the environment keeps their tasks apart.
        options: further reset options of the environment.
    """

    seed: int
    split: Split = "train"
    options: dict[str, Any] = {}


@dataclass
class Job:
    """One episode to be played.

    Attributes:
        task: what to play.
        group: index of the group whose rewards are compared; trajectories of one group share the task.
        behaviour: what this episode is played under and the learner need not see (guidance, a skill version ...).
    """

    task: Task
    group: int = 0
    behaviour: dict[str, Any] = field(default_factory=dict)


@dataclass
class Segment:
    """Exactly the tokens the policy saw in one stretch of context, in order: one training row.

    Attributes:
        ids: token ids, prompt and observations included.
        mask: true where the policy wrote the token.
        logprobs: log-probability under the behaviour policy, 0 where ``mask`` is false.
        prompt_length: tokens before the first one of the policy.
        plain_prompt: the prompt without the behaviour's notes, where it differs; see :meth:`with_plain_prompt`.
        tags: further integers per token, each as long as ``ids``, 0 for none: ``source`` (1 + the turn that wrote it),
            ``finding`` (1 + the turn it sums up), ``selection`` (1 where the memory's records are chosen).
    """

    ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    prompt_length: int
    plain_prompt: list[int] | None = None
    tags: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def begin(cls, prompt: list[int], plain_prompt: list[int] | None = None) -> Segment:
        return cls(list(prompt), [False] * len(prompt), [0.0] * len(prompt), len(prompt), plain_prompt)

    def write(self, ids: list[int], logprobs: list[float], tags: dict[str, list[int]] | None = None) -> None:
        """Append tokens of the policy, the end-of-turn token among them, with what is to be remembered of each."""
        for name in tags or {}:
            self.tags.setdefault(name, [0] * len(self.ids))
        for name, tag in self.tags.items():
            tag += (tags or {}).get(name, [0] * len(ids))
        self._append(ids, [True] * len(ids), logprobs)

    def read(self, ids: list[int]) -> None:
        """Append tokens that the policy is shown: observations, reminders."""
        for tag in self.tags.values():
            tag += [0] * len(ids)
        self._append(ids, [False] * len(ids), [0.0] * len(ids))

    def _append(self, ids: list[int], mask: list[bool], logprobs: list[float]) -> None:
        self.ids += ids
        self.mask += mask
        self.logprobs += logprobs

    def with_plain_prompt(self) -> Segment:
        """The same answer tokens and behaviour log-probabilities behind the prompt without notes.

        The ids of the answer are kept as sampled: only the prompt is exchanged, and positions follow from it.
        """
        if self.plain_prompt is None:
            return self
        size = len(self.plain_prompt)
        start = self.prompt_length
        return replace(
            self,
            ids=self.plain_prompt + self.ids[start:],
            mask=[False] * size + self.mask[start:],
            logprobs=[0.0] * size + self.logprobs[start:],
            tags={name: [0] * size + tag[start:] for name, tag in self.tags.items()},
            prompt_length=size,
            plain_prompt=None,
        )


@dataclass
class Record:
    """A turn as the memory keeps it (ECHO): its number, its action, and what was found."""

    turn: int
    action: str
    finding: str = ""


@dataclass
class Boundary:
    """Where one segment ended and the next began.

    Attributes:
        segment: index of the segment that ended.
        turn: the turn that did not fit any more; where it is carried over raw, it counts as in view.
        records: what the memory held.
        chosen: turns the policy picked.
        kept: turns in view of the next segment besides ``turn``.
        text: what the policy wrote when it was asked.
        valid: whether that could be read as an answer.
    """

    segment: int
    turn: int
    records: list[Record] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    text: str = ""
    valid: bool = True


@dataclass
class Turn:
    """One exchange as text, for people and for parsers: never encoded again."""

    observation: str
    reply: str
    action: str | None


@dataclass
class Trajectory:
    """A finished episode.

    Attributes:
        job: what was played, in which group and under which behaviour.
        segments: the training rows, at least one.
        reward: the return; ``None`` if the world failed, which drops the trajectory instead of scoring it 0.
        finish: why it ended: ``answered``, ``max_turns``, ``context_full``, ``overlong`` (the memory ran full
            too often), ``generation_cut``, ``truncated``, ``environment_error``.
        turns: the episode as text.
        info: what the environment said at reset and at the end, later keys winning.
        boundaries: what happened between the segments.
    """

    job: Job
    segments: list[Segment]
    reward: float | None
    finish: str
    turns: list[Turn]
    info: dict[str, Any]
    boundaries: list[Boundary] = field(default_factory=list)

    @property
    def success(self) -> bool:
        return bool(self.info.get("success", False))

    @property
    def written(self) -> int:
        """Tokens the policy wrote."""
        return sum(sum(segment.mask) for segment in self.segments)


class Row(TypedDict):
    """One training row on its way into the buffer; a method may add tensors of its own.

    A 1-d tensor is per token and padded with zeros in a batch, a 0-d tensor is per row.
    """

    ids: Tensor  # int64 [length]
    mask: Tensor  # bool [length], true on trained tokens
    old_logprobs: Tensor  # float32 [length], behaviour policy
    advantages: Tensor  # float32 [length]
    trajectory: Tensor  # int64 scalar: rows of one trajectory stay in one minibatch
