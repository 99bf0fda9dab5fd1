"""An expert's states as tasks of one reply: what to do there, or which of two actions is better (ACT, arXiv 2603.08706)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from string import printable
from typing import Any, Literal, TypeVar

import gymnasium
import torch
from gymnasium import spaces
from lightning.pytorch.utilities import rank_zero_warn
from transformers import PreTrainedTokenizerBase

from datamodules.demonstrations import demonstrated
from datamodules.rollouts import RolloutDataModule, TaskBatches
from zoo.act.judgment import alternatives, canonical
from zoo.errors import ConfigError
from zoo.rollout.context import LatestTurns, state
from zoo.rollout.loop import perform
from zoo.rollout.trajectory import Job, Row, Split, Task

_SPLITS: tuple[Split, ...] = ("train", "val", "test")
_Read = TypeVar("_Read")
Think = Callable[[Sequence[Job]], Sequence[str]]


@dataclass(frozen=True)
class Decision:
    """What an expert did where, and what else might have been done.

    Attributes:
        split: of its trajectory.
        trajectory: number of the expert's trajectory.
        turn: number of its turn there.
        state: the task, the latest turns and the current observation, as the policy is shown them.
        expert: the expert's action.
        admissible: the actions that are possible there.
        alternatives: actions of the initial policy that differ from the expert's; none before they are sampled.
        thoughts: what it thought before each alternative.
    """

    split: Split
    trajectory: int
    turn: int
    state: str
    expert: str
    admissible: list[str]
    alternatives: list[str]
    thoughts: list[str]


class ActionPairDataModule(RolloutDataModule):
    """Expert trajectories cut into states. A task is one state, a reply one decision, so every sampler and method fits.

    Args:
        ask: ``action``: the state alone; ``choice``: the state, then the expert's action and an alternative in random order, and
            which of them is better. Evaluation asks for each choice in both orders. ``either``, for warm starts: every second
            training task is a choice, the others and evaluation are as with ``action``.
        trajectories: expert trajectories of each split, played by the world's own expert.
        demonstrations: a file with expert trajectories instead, one a line: ``{"split": "train", "first": observation, "steps":
            [{"action": ..., "observation": what followed, "admissible_actions": [...]}]}``.
        pairs: a file of decisions with alternatives, as ``zoo predict`` writes it; ``choice`` needs one. With ``action`` its states
            are asked alone.
        order: of the two candidates, ``random`` (drawn anew each iteration, by the seed) or ``expert_first`` (control).
        source: of the alternatives: ``sampled`` from the initial policy, or ``random`` admissible actions (control).
        shuffle_labels: which candidate is called the expert's is drawn by lot (control).
        inject: what the policy thought before the alternative stands behind the question, as if it had been thought again: with
            ``thoughts: skipped`` of the protocol, a wrong rationale in place of one's own.
        on_error: a line of a file that cannot be read is an error (``raise``) or left out with a warning (``skip``).
        **kwargs: of :class:`datamodules.RolloutDataModule`; ``context`` is a ``LatestTurns`` by default, ``train_tasks`` the number
            of decisions there are, ``val_tasks`` and ``test_tasks`` the most that an evaluation asks for.

    Raises:
        ConfigError: a file that is missing, was changed since it was written, or cannot be read.
    """

    def __init__(
        self,
        ask: Literal["action", "choice", "either"] = "choice",
        trajectories: dict[str, int] | None = None,
        demonstrations: str | None = None,
        pairs: str | None = None,
        order: Literal["random", "expert_first"] = "random",
        source: Literal["sampled", "random"] = "sampled",
        shuffle_labels: bool = False,
        inject: bool = False,
        on_error: Literal["raise", "skip"] = "raise",
        **kwargs: Any,
    ) -> None:
        kwargs["context"] = kwargs.get("context") or LatestTurns()
        super().__init__(**kwargs)
        self.ask, self.order, self.source = ask, order, source
        self.shuffle_labels, self.inject, self.on_error = shuffle_labels, inject, on_error
        self.trajectories = {"train": 100, "val": 50, "test": 50} | (trajectories or {})
        self.demonstration_file, self.pair_file = demonstrations, pairs
        if unknown := set(self.trajectories) - set(_SPLITS):
            raise ConfigError(f"data.trajectories has the splits {_SPLITS}, not {sorted(unknown)}")
        if not isinstance(self.context, LatestTurns):
            raise ConfigError("data.context must be a LatestTurns: states are shown as it shows them")
        if ask != "action" and source == "sampled" and not pairs:
            raise ConfigError(
                f"data.pairs is missing: ask={ask} needs the file that `zoo predict` with ask=action writes"
            )
        self._episode_turns, self.max_turns = self.max_turns, 1
        self._most: dict[Split, int] = {"val": self.sizes["val"], "test": self.sizes["test"]}

    @cached_property
    def decisions(self) -> dict[Split, list[Decision]]:
        """All decisions by split; if choices are asked for, one for each alternative."""
        if self.pair_file:
            found = read_pairs(Path(self.pair_file), self.on_error)
        else:
            found = [decision for line in self._expert() for decision in self._cut(*line)]
        if self.ask != "action":
            found = [pair for decision in found for pair in self._paired(decision)]
        by_split = {split: [decision for decision in found if decision.split == split] for split in _SPLITS}
        if not by_split["train"]:
            raise ConfigError("there is no expert decision to learn from: see data.trajectories, demonstrations, pairs")
        self.sizes = {split: len(decisions) for split, decisions in by_split.items()}
        return by_split

    def _expert(self) -> Iterable[tuple[int, dict[str, Any]]]:
        """Expert trajectories with their numbers."""
        if self.demonstration_file:
            return read_lines(Path(self.demonstration_file), _trajectory, self.on_error)
        return enumerate(line for split in _SPLITS for line in self._solved(split))

    def _solved(self, split: Split) -> list[dict[str, Any]]:
        """Trajectories of the first tasks of a split that the world's expert solves."""
        wanted, number = self.trajectories[split], 0
        found: list[dict[str, Any]] = []
        while len(found) < wanted:
            if number == 10 * wanted:
                turns = f"data.max_turns={self._episode_turns}"
                raise ConfigError(
                    f"the expert solves only {len(found)} of {number} tasks ({split}) in {turns}: raise it"
                )
            line = demonstrate(self.world, super().task(split, number), self._episode_turns)
            found += [line] if line else []
            number += 1
        return found

    def _cut(self, number: int, line: dict[str, Any]) -> list[Decision]:
        """The states of one trajectory."""
        turns = [(step["action"], step["observation"]) for step in line["steps"]]
        kept = self.context.turns  # type: ignore[attr-defined]
        return [
            Decision(
                split=line.get("split", "train"),
                trajectory=number,
                turn=turn,
                state=state(line["first"], turns[max(0, turn - kept) : turn], self.protocol),
                expert=canonical(step["action"]),
                admissible=[canonical(action) for action in step["admissible_actions"]],
                alternatives=[],
                thoughts=[],
            )
            for turn, step in enumerate(line["steps"])
        ]

    def _paired(self, decision: Decision) -> list[Decision]:
        """The decision once for each alternative."""
        others = list(zip(decision.alternatives, decision.thoughts, strict=True))
        if self.source == "random":
            lot = random.Random(f"{decision.split} {decision.trajectory} {decision.turn}")
            left = [action for action in decision.admissible if action != decision.expert]
            others = [(action, "") for action in lot.sample(left, min(1, len(left)))]
        return [replace(decision, alternatives=[action], thoughts=[thought]) for action, thought in others]

    # -- as tasks --------------------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.decisions  # noqa: B018 - what is wrong with the files is said before anything runs

    def environments(self, count: int) -> Sequence[gymnasium.Env[str, str]]:
        return [_OneDecision(self) for _ in range(count)]

    @property
    def world(self) -> gymnasium.Env[str, str]:
        """The world that the expert acts in."""
        return super().environments(1)[0]

    def task(self, split: Split, index: int) -> Task:
        return Task(index, split)

    def tasks(self, split: Split) -> list[Task]:
        swaps: list[dict[str, Any]] = [{"swap": False}, {"swap": True}] if self.ask == "choice" else [{}]
        asked = [Task(index, split, swap) for index in range(len(self.decisions[split])) for swap in swaps]
        return asked[: self._most[split]] if split in self._most else asked

    def iteration_jobs(self, iteration: int) -> list[Job]:
        self.decisions  # noqa: B018 - their number is that of the tasks
        jobs = super().iteration_jobs(iteration)
        return [Job(job.task._replace(options=self._options(iteration, job)), job.group) for job in jobs]

    def _options(self, iteration: int, job: Job) -> dict[str, Any]:
        """Whether and in which order a training task shows candidates."""
        if self.ask == "action" or (self.ask == "either" and job.group % 2):
            return {}
        return {"swap": self.order == "random" and random.Random(f"{self.seed} {iteration} {job.group}").random() < 0.5}

    def predict_dataloader(self) -> TaskBatches:
        """The decisions of all splits, each once."""
        self._most = {}
        return TaskBatches([batch for split in _SPLITS for batch in self._evaluation(split)])

    def demonstrations(
        self, iteration: int, tokenizer: PreTrainedTokenizerBase, think: Think | None = None
    ) -> list[Row]:
        """The expert's decisions as rows to be imitated: actions, or choices.

        Those of one trajectory go together, since with all turns in view they begin alike and cost little more than one.

        Args:
            iteration: of training.
            tokenizer: of the policy.
            think: gives a thought for each job, to stand before the action; it is shown, not imitated.

        Raises:
            ConfigError: a state that does not fit the context.
        """
        decisions = self.decisions["train"]
        jobs = [Job(job.task, decisions[job.task.seed].trajectory) for job in self.iteration_jobs(iteration)]
        thoughts = dict(zip(map(id, jobs), think(jobs) if think else [""] * len(jobs), strict=True))
        played = perform(lambda episode: (thoughts[id(episode.job)], episode.info["expert"]), tokenizer, self, jobs)
        for trajectory in played:
            if trajectory.finish == "context_full":
                raise ConfigError(f"a state does not fit into context.max_tokens={self.context.max_tokens}: raise it")
        rows = demonstrated(played)
        for row, trajectory in zip(rows, played, strict=True):
            info = trajectory.info
            unsaid = len(row["ids"]) - len(self.protocol.action(tokenizer, info["expert"], info))
            row["mask"][:unsaid] = False
            row["advantages"][:unsaid] = 0.0
        return rows

    def preferences(self, iteration: int, tokenizer: PreTrainedTokenizerBase) -> list[Row]:
        """The iteration's states with two replies each, as rows: the expert's action, and as ``rejected`` the first alternative.

        Both are padded to the same length; ``rejected_mask`` is the ``mask`` of the other.

        Raises:
            ConfigError: decisions without alternatives.
        """
        rows = []
        for index, job in enumerate(self.iteration_jobs(iteration)):
            decision = self.decisions["train"][job.task.seed]
            if not decision.alternatives:
                raise ConfigError("preferences need alternatives: set data.pairs to what `zoo predict` wrote")
            prompt = self.protocol.prompt(tokenizer, decision.state, {})
            replies = [
                torch.tensor(self.protocol.action(tokenizer, action, {}))
                for action in (decision.expert, decision.alternatives[0])
            ]
            padded = torch.nn.utils.rnn.pad_sequence(replies, batch_first=True)
            ids = torch.cat([torch.tensor(prompt).expand(2, -1), padded], 1)
            lengths = torch.tensor([len(prompt) + len(reply) for reply in replies])[:, None]
            places = torch.arange(ids.shape[1])
            mask = (places >= len(prompt)) & (places < lengths)
            row: Any = {
                "ids": ids[0],
                "mask": mask[0],
                "rejected": ids[1],
                "rejected_mask": mask[1],
                "old_logprobs": torch.zeros(ids.shape[1]),
                "advantages": mask[0].float(),
                "trajectory": torch.tensor(index),
            }
            rows.append(row)
        return rows


class _OneDecision(gymnasium.Env[str, str]):
    """Shows a decision of the datamodule; whatever is done ends the episode. Reward 1 for the expert's action."""

    observation_space = action_space = spaces.Text(65536, charset=printable)

    def __init__(self, data: ActionPairDataModule) -> None:
        self.data = data

    @property
    def vocabulary(self) -> tuple[str, ...]:
        asked = self.data.protocol.phrases.judge.split()
        return (*self.data.world.vocabulary, *(word for word in asked if "{" not in word))  # type: ignore[attr-defined]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        told = options or {}
        decision = self.data.decisions[told["split"]][seed or 0]
        self.expert, shown = decision.expert, decision.state
        info: dict[str, Any] = {"admissible": decision.admissible, "success": False}
        info["admissible_actions"] = decision.admissible
        if "swap" in told:
            pair, swap = [decision.expert, *decision.alternatives], told["swap"]
            first, second = reversed(pair) if swap else pair
            lot = random.Random(f"{decision.split} {decision.trajectory} {decision.turn} {pair}")
            if self.data.shuffle_labels and decision.split == "train" and lot.random() < 0.5:
                self.expert = pair[1]
            info |= {"admissible_actions": [first, second], "swapped": swap}
            thought = f" {decision.thoughts[0]}" if self.data.inject else ""
            shown = f"{shown}\n{self.data.protocol.phrases.judge.format(first=first, second=second)}{thought}"
        info["expert"] = self.expert
        return shown, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = canonical(action) == self.expert
        return "", float(right), True, False, {"success": right}


def demonstrate(env: gymnasium.Env[str, str], task: Task, turns: int) -> dict[str, Any] | None:
    """One expert trajectory in the form of a line of a demonstration file; ``None`` if it does not solve the task in time.

    Raises:
        ConfigError: a world that tells no ``expert_action``.
    """
    first, info = env.reset(seed=task.seed, options={"split": task.split, **task.options})
    if "expert_action" not in info or "admissible_actions" not in info:
        raise ConfigError(
            f"{type(env).__name__} tells no expert_action and admissible_actions: set data.demonstrations"
        )
    steps: list[dict[str, Any]] = []
    ended = False
    while not ended and len(steps) < turns and info["expert_action"]:
        step = {"action": info["expert_action"], "admissible_actions": info["admissible_actions"]}
        observation, _, terminated, truncated, info = env.step(step["action"])
        steps.append({**step, "observation": observation})
        ended = terminated or truncated
    return {"split": task.split, "first": first, "steps": steps} if info.get("success") else None


# -- files ---------------------------------------------------------------------------------------------------------------


def write_pairs(path: Path, decisions: Sequence[Decision]) -> str:
    """Write decisions, a header with their hash first; returns the hash."""
    lines = [json.dumps(asdict(decision)) for decision in decisions]
    digest = _digest(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([json.dumps({"decisions": len(lines), "sha256": digest}), *lines]) + "\n")
    return digest


def read_pairs(path: Path, on_error: str = "raise") -> list[Decision]:
    """Read what :func:`write_pairs` wrote.

    Raises:
        ConfigError: no such file, a line that is no decision, or lines that are not those the hash was made of.
    """
    lines = _lines(path)
    try:
        promised = json.loads(lines[0])["sha256"]
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}:1: no header with the sha256 of the lines below: write it with `zoo predict`"
        ) from error
    decisions = [decision for _, decision in read_lines(path, _decision, on_error, start=1)]
    if on_error == "raise" and _digest(lines[1:]) != promised:
        raise ConfigError(
            f"{path} was changed after it was written: its lines do not have the sha256 of its first line"
        )
    return decisions


def read_lines(
    path: Path, parse: Callable[[Any], _Read], on_error: str = "raise", start: int = 0
) -> list[tuple[int, _Read]]:
    """The lines of a JSONL file from ``start`` on, parsed, with their numbers from 0.

    Raises:
        ConfigError: no such file, or a line that ``parse`` refuses; ``on_error="skip"`` warns of it and leaves it out.
    """
    found = []
    for number, line in enumerate(_lines(path)[start:], start):
        try:
            found.append((number, parse(json.loads(line))))
        except (ValueError, KeyError, TypeError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            message = f"{path}:{number + 1}: {reason}"
            if on_error == "raise":
                raise ConfigError(f"{message}; data.on_error=skip leaves such lines out") from error
            rank_zero_warn(f"{message}; left out")
    return found


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}: see data.pairs and data.demonstrations")
    return [line for line in path.read_text().splitlines() if line.strip()]


def _digest(lines: Iterable[str]) -> str:
    return sha256("\n".join(lines).encode()).hexdigest()


def _trajectory(line: dict[str, Any]) -> dict[str, Any]:
    if line.get("split", "train") not in _SPLITS:
        raise ValueError(f"split must be one of {_SPLITS}, not {line['split']!r}")
    _text(line["first"], "first")
    for step in line["steps"]:
        _text(step["action"], "action")
        _text(step["observation"], "observation")
        _texts(step["admissible_actions"], "admissible_actions")
    return line


def _decision(line: dict[str, Any]) -> Decision:
    decision = Decision(**line)
    if decision.split not in _SPLITS:
        raise ValueError(f"split must be one of {_SPLITS}, not {decision.split!r}")
    _text(decision.state, "state")
    _text(decision.expert, "expert")
    _texts(decision.admissible, "admissible")
    _texts(decision.alternatives, "alternatives")
    _texts(decision.thoughts, "thoughts")
    if len(alternatives(decision.alternatives, decision.expert, len(decision.alternatives))) < len(
        decision.alternatives
    ):
        raise ValueError(
            f"alternatives must differ from each other and from {decision.expert!r}: {decision.alternatives}"
        )
    if len(decision.thoughts) != len(decision.alternatives):
        raise ValueError(f"there must be a thought for each alternative, not {decision.thoughts}")
    return decision


def _text(value: Any, name: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be text, not {value!r}")


def _texts(values: Any, name: str) -> None:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name} must be a list of texts, not {values!r}")
