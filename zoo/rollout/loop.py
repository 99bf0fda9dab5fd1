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

from zoo.policy.causal import CausalPolicy
from zoo.rollout.context import ContextManager
from zoo.rollout.engine import Engine, Reply
from zoo.rollout.protocol import Protocol
from zoo.rollout.trajectory import Job, Segment, Trajectory, Turn

log = logging.getLogger(__name__)

Notes = Callable[[Job], str]


class World(Interface):
    """What the loop needs to know of the world; ``RolloutDataModule`` is one."""

    protocol: Protocol
    context: ContextManager
    max_turns: int

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
    segments: list[Segment] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    reward: float | None = 0.0
    finish: str = ""

    def observe(self, info: dict[str, Any]) -> None:
        self.info = info
        self.facts |= info

    def fail(self, error: Exception) -> None:
        """The world broke: no reward, so that the episode is dropped rather than scored."""
        log.error("environment failed on %s after %d turns", self.job.task, len(self.turns), exc_info=error)
        self.finish, self.reward = "environment_error", None

    def done(self) -> Trajectory:
        reward = self.reward if self.reward is not None and math.isfinite(self.reward) else None
        return Trajectory(self.job, self.segments, reward, self.finish, self.turns, self.facts)


@torch.no_grad()
def play(
    policy: CausalPolicy,
    world: World,
    jobs: Sequence[Job],
    *,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    notes: Notes = lambda job: "",
) -> list[Trajectory]:
    """Play one episode per job.

    Args:
        policy: samples the replies.
        world: environments, protocol, context manager and turn limit.
        jobs: what to play; the order of the result is theirs.
        temperature: of sampling; 0 is greedy.
        generator: source of the sampling noise.
        notes: text that the method adds to an episode's first prompt.

    Returns:
        The trajectories. One whose environment raised has ``reward=None`` and ``finish="environment_error"``.

    Raises:
        RuntimeError: every environment failed, so the fault is not one of an episode.
    """
    episodes = [Episode(job, env) for job, env in zip(jobs, world.environments(len(jobs)), strict=True)]
    tokenizer, protocol = policy.tokenizer, world.protocol
    running = [episode for episode in episodes if _reset(episode, world, policy, notes(episode.job))]
    engine = Engine(policy, temperature, generator)
    if running:
        engine.admit([episode.segments[0].ids for episode in running])
    stop = protocol.stop(tokenizer)
    while running:
        caps = [min(protocol.max_new_tokens, world.context.room(episode.segments[-1])) for episode in running]
        replies = engine.generate(caps, stop)
        pending = []
        for episode, reply in zip(running, replies, strict=True):
            pending.append(_turn(episode, reply, world, policy))
        alive = [index for index, episode in enumerate(running) if not episode.finish]
        running = [running[index] for index in alive]
        if running:
            engine.keep(alive)
            engine.feed([pending[index] for index in alive])
    if episodes and all(episode.finish == "environment_error" for episode in episodes):
        raise RuntimeError(f"all {len(episodes)} environments failed; the first error is in the log above")
    return [episode.done() for episode in episodes]


def _reset(episode: Episode, world: World, policy: CausalPolicy, notes: str) -> bool:
    task = episode.job.task
    try:
        episode.observation, info = episode.env.reset(seed=task.seed, options={"split": task.split, **task.options})
    except Exception as error:  # noqa: BLE001 - whatever a world raises is reported and costs this episode only
        episode.segments = [Segment.begin([])]
        episode.fail(error)
        return False
    episode.observe(info)
    plain = world.protocol.prompt(policy.tokenizer, episode.observation, info)
    prompt = world.protocol.prompt(policy.tokenizer, episode.observation, info, notes) if notes else plain
    episode.segments = [Segment.begin(prompt, plain if notes else None)]
    if world.context.room(episode.segments[0]) < 1:
        episode.finish = "context_full"
    return not episode.finish


def _turn(episode: Episode, reply: Reply, world: World, policy: CausalPolicy) -> list[int]:
    """Record a reply, let the world answer, and return the ids to be fed before the next reply."""
    segment, protocol = episode.segments[-1], world.protocol
    segment.write(reply.ids, reply.logprobs)
    text = policy.tokenizer.decode(reply.ids, skip_special_tokens=False)
    action = protocol.parse(text, episode.info) if reply.stopped else None
    episode.turns.append(Turn(episode.observation, text, action))
    if not reply.stopped:
        cut_by_context = world.context.room(segment) < 1
        episode.finish = "context_full" if cut_by_context else "generation_cut"
        return []
    if action is None:
        episode.observation = protocol.correction
        episode.facts["invalid_replies"] = episode.facts.get("invalid_replies", 0) + 1
    else:
        _step(episode, action)
    if not episode.finish and len(episode.turns) >= world.max_turns:
        episode.finish = "max_turns"
    if episode.finish:
        return []
    ids = protocol.observation(policy.tokenizer, episode.observation, episode.info)
    if not world.context.extend(segment, ids):
        episode.finish = "context_full"
        return []
    return reply.ids[-1:] + ids


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
