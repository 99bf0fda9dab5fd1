"""The agent loop: many episodes played in step, one batched generation a turn."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from typing import Protocol as Interface

import gymnasium
import torch
from transformers import PreTrainedTokenizerBase

from zoo.policy.causal import CausalPolicy
from zoo.rollout.context import ContextManager, Opening, Step, View
from zoo.rollout.engine import Engine, Reply
from zoo.rollout.protocol import Info, Protocol
from zoo.rollout.trajectory import Job, Segment, Trajectory, Turn

log = logging.getLogger(__name__)

Notes = Callable[[Job, Sequence[Turn], Info], str]


class World(Interface):
    """What the loop needs to know of the world; ``RolloutDataModule`` is one."""

    protocol: Protocol
    context: ContextManager
    max_turns: int
    concurrent_episodes: int

    def environments(self, count: int) -> Sequence[gymnasium.Env[str, str]]:
        """``count`` environments that may be reset at will."""
        ...


@dataclass
class Episode:
    """A running episode; ``finish`` is empty until it ends."""

    job: Job
    env: gymnasium.Env[str, str]
    observation: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    view: View | None = None  # none if the world failed at once
    turns: list[Turn] = field(default_factory=list)
    reward: float | None = 0.0
    finish: str = ""

    @property
    def seen(self) -> View:
        """The view of an episode that has begun."""
        assert self.view is not None
        return self.view

    def observe(self, info: dict[str, Any]) -> None:
        self.info = info
        self.facts |= info

    def fail(self, error: Exception) -> None:
        """The world broke: no reward, so that the episode is dropped rather than scored."""
        log.error("environment failed on %s after %d turns", self.job.task, len(self.turns), exc_info=error)
        self.finish, self.reward = "environment_error", None

    def done(self) -> Trajectory:
        reward = self.reward if self.reward is not None and math.isfinite(self.reward) else None
        segments = self.view.segments if self.view else [Segment.begin([])]
        boundaries = self.view.boundaries if self.view else []
        return Trajectory(self.job, segments, reward, self.finish, self.turns, self.facts, boundaries)


Script = Callable[[Episode], tuple[str, str] | None]


@dataclass
class Stage:
    """A :class:`World` put together from parts."""

    protocol: Protocol
    context: ContextManager
    max_turns: int
    environments: Callable[[int], Sequence[gymnasium.Env[str, str]]]
    concurrent_episodes: int = 256


@torch.no_grad()
def play(
    policy: CausalPolicy,
    world: World,
    jobs: Sequence[Job],
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    notes: Notes = lambda job, turns, info: "",
) -> list[Trajectory]:
    """Play one episode per job.

    Args:
        policy: samples the replies.
        world: environments, protocol, context manager, and the limits on turns and on episodes at a time.
        jobs: what to play; the order of the result is theirs.
        temperature: of sampling; 0 is greedy.
        generator: source of the sampling noise.
        notes: text that the method adds to each prompt of an episode, from the turns before it and what the world told.

    Returns:
        The trajectories. One whose environment raised has ``reward=None`` and ``finish="environment_error"``.

    Raises:
        RuntimeError: every environment failed, so the fault is not one of an episode.
    """
    engine = Engine(policy, temperature, generator)
    stop = world.protocol.stop(policy.tokenizer)

    def speak(running: list[Episode]) -> list[Reply]:
        most = world.protocol.max_new_tokens
        rooms = ((episode.seen.room(), episode.seen.asking) for episode in running)
        return engine.generate([room if asking else min(most, room) for room, asking in rooms], stop)

    def listen(steps: list[Step | None]) -> None:
        """Bring the cache to where the next replies begin; new segments go behind the rows that stay."""
        if not engine.forgets:
            steps[:] = [step and step._replace(starts=step.starts or step.kept is not None) for step in steps]
        going = [(row, step) for row, step in enumerate(steps) if step and not step.starts]
        engine.keep([row for row, _ in going])
        engine.forget([step.kept for _, step in going])
        engine.feed([step.ids[step.kept or 0 :] for _, step in going])
        if fresh := [step.ids for step in steps if step and step.starts]:
            engine.admit(fresh)

    return _play(policy.tokenizer, world, jobs, notes, speak, listen)


def perform(
    script: Script,
    tokenizer: PreTrainedTokenizerBase,
    world: World,
    jobs: Sequence[Job],
    notes: Notes = lambda job, turns, info: "",
) -> list[Trajectory]:
    """Play one episode per job by a script instead of a policy: what is shown and kept is the same.

    Args:
        script: the next reply: what it says to the memory and the action, either may be empty; ``None`` leaves the episode as
            ``script_ended``.
        tokenizer: of the policy that is to learn from it.
        world: environments, protocol, context manager and turn limit.
        jobs: what to play; the order of the result is theirs.
        notes: text that the method adds to each prompt of an episode, from the turns before it and what the world told.
    """

    def speak(running: list[Episode]) -> list[Reply]:
        replies = []
        for episode in running:
            said = script(episode)
            ids = world.protocol.action(tokenizer, said[1], episode.info, said[0]) if said else []
            room = episode.seen.room()
            replies.append(Reply(ids[:room], [0.0] * len(ids[:room]), len(ids) <= room))
            episode.finish = "" if said else "script_ended"
        return replies

    return _play(tokenizer, world, jobs, notes, speak, lambda steps: None)


def _play(
    tokenizer: PreTrainedTokenizerBase,
    world: World,
    jobs: Sequence[Job],
    notes: Notes,
    speak: Callable[[list[Episode]], list[Reply]],
    listen: Callable[[list[Step | None]], None],
) -> list[Trajectory]:
    """The loop: ``speak`` gives a reply for every running episode, ``listen`` hears what follows each (``None``: it ended)."""
    most = min(world.concurrent_episodes, len(jobs))
    episodes: list[Episode] = []
    running: list[Episode] = []
    free = list(world.environments(most))
    while running or len(episodes) < len(jobs):
        replies = speak(running) if running else []
        steps: list[Step | None] = [
            _take(episode, reply, world, tokenizer) for episode, reply in zip(running, replies, strict=True)
        ]
        free += [episode.env for episode, step in zip(running, steps, strict=True) if not step]
        if 4 * len(free) >= most:  # not for every place, since those that join have a pass of their own
            begun = _begin(jobs[len(episodes) :], free, world, tokenizer, notes)
            episodes += begun
            begun = [episode for episode in begun if not episode.finish]
            running = running + begun
            steps += [Step(list(episode.seen.segment.ids), starts=True) for episode in begun]
        if any(steps):
            listen(steps)
        paired = [(episode, step) for episode, step in zip(running, steps, strict=True) if step]
        running = [e for e, step in paired if not step.starts] + [e for e, step in paired if step.starts]
    if episodes and all(episode.finish == "environment_error" for episode in episodes):
        raise RuntimeError(f"all {len(episodes)} environments failed; the first error is in the log above")
    return [episode.done() for episode in episodes]


def _begin(
    jobs: Sequence[Job],
    free: list[gymnasium.Env[str, str]],
    world: World,
    tokenizer: PreTrainedTokenizerBase,
    notes: Notes,
) -> list[Episode]:
    """Begin the next jobs in the free environments.

    One that ends at once leaves its environment free, but not for this call: a broken one would fail all jobs that wait.
    """
    begun: list[Episode] = []
    for job in jobs[: len(free)]:
        begun.append(Episode(job, free.pop(0)))
        _reset(begun[-1], world, tokenizer, notes)
    free += [episode.env for episode in begun if episode.finish]
    return begun


def _reset(episode: Episode, world: World, tokenizer: PreTrainedTokenizerBase, notes: Notes) -> None:
    task, protocol = episode.job.task, world.protocol
    try:
        episode.observation, info = episode.env.reset(seed=task.seed, options={"split": task.split, **task.options})
    except Exception as error:  # noqa: BLE001 - whatever a world raises is reported and costs this episode only
        episode.fail(error)
        return
    episode.observe(info)
    first = episode.observation

    def segment(memory: str, seen: str = first, told: Info = info) -> Segment:
        plain = protocol.prompt(tokenizer, seen, told, memory)
        if not (noted := notes(episode.job, episode.turns, episode.facts)):
            return Segment.begin(plain)
        return Segment.begin(protocol.prompt(tokenizer, seen, told, f"{memory}\n\n{noted}".strip()), plain)

    episode.view = world.context.open(Opening(segment, protocol, tokenizer, first))
    if episode.view.room() < 1:
        episode.finish = "context_full"


def _take(episode: Episode, reply: Reply, world: World, tokenizer: PreTrainedTokenizerBase) -> Step | None:
    """Record a reply, let the world or the memory answer, and return what follows; ``None`` at the episode's end."""
    if episode.finish:
        return None
    view, text = episode.seen, str(tokenizer.decode(reply.ids, skip_special_tokens=False))
    if view.asking:
        return _go_on(episode, view.answer(reply.ids, reply.logprobs, text))
    action_text = view.write(reply.ids, reply.logprobs, text)
    action = world.protocol.parse(action_text, episode.info) if reply.stopped else None
    episode.turns.append(Turn(episode.observation, text, action))
    if not reply.stopped:
        episode.finish = "context_full" if view.room() < 1 else "generation_cut"
        return None
    if action is None:
        episode.observation = world.protocol.correction
        episode.facts["invalid_replies"] = episode.facts.get("invalid_replies", 0) + 1
    else:
        _step(episode, action)
    if not episode.finish and len(episode.turns) >= world.max_turns:
        episode.finish = "max_turns"
    if episode.finish:
        return None
    return _go_on(episode, view.read(episode.observation, episode.info, action))


def _go_on(episode: Episode, step: Step) -> Step | None:
    episode.finish = step.finish
    return None if step.finish else step


def _step(episode: Episode, action: str) -> None:
    try:
        episode.observation, reward, terminated, truncated, info = episode.env.step(action)
    except Exception as error:  # noqa: BLE001 - whatever a world raises is reported and costs this episode only
        episode.fail(error)
        return
    episode.observe(info)
    # A verifier that has no answer says None or NaN; either makes the whole return unknown.
    known = episode.reward is not None and reward is not None
    episode.reward = episode.reward + float(reward) if known else None  # type: ignore[operator]
    if terminated or truncated:
        episode.finish = "answered" if terminated else "truncated"
