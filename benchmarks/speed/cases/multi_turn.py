"""Sixteen conversations: a prompt of 64 tokens, then turns of 24 tokens written and 40 read."""

from __future__ import annotations

import tempfile
from typing import Any

import torch

from benchmarks.speed.networks import network, passes
from benchmarks.speed.peers import trl_trainer
from benchmarks.speed.worker import Step
from zoo.rollout.engine import Engine

PEER = "the generation of TRL's tool loop, GRPOTrainer._generate_single_turn on the whole conversation"
VARIANTS: dict[str, dict[str, Any]] = {f"{turns} turns": {"turns": turns} for turns in (2, 4, 8, 16)}
ROWS, PROMPT, WRITTEN, READ = 16, 64, 24, 40
Rows = list[list[int]]


def _text(turns: int) -> tuple[Rows, list[Rows]]:
    generator = torch.Generator().manual_seed(0)

    def some(length: int) -> Rows:
        return torch.randint(3, 4096, (ROWS, length), generator=generator).tolist()

    return some(PROMPT), [some(READ) for _ in range(turns - 1)]


def ours(turns: int, temperature: float = 1.0) -> Step:
    policy, (prompts, seen) = network("5M").eval(), _text(turns)

    @torch.no_grad()
    def step() -> Rows:
        engine = Engine(policy, temperature, torch.Generator().manual_seed(0))
        engine.admit(prompts)
        said: Rows = [[] for _ in prompts]
        for turn in range(turns):
            replies = engine.generate([WRITTEN] * ROWS, [])
            for row, reply in zip(said, replies, strict=True):
                row += reply.ids
            if turn < turns - 1:
                engine.feed([reply.ids[-1:] + ids for reply, ids in zip(replies, seen[turn], strict=True)])
        return said

    return step


def peer(turns: int, temperature: float = 1.0) -> Step:
    policy, (prompts, seen) = network("5M"), _text(turns)
    trainer = trl_trainer(policy, tempfile.mkdtemp(), max_completion_length=WRITTEN)
    trainer.generation_config.eos_token_id = None  # all write all their tokens, as on the other side
    trainer.generation_config.do_sample = temperature > 0

    def step() -> Rows:
        said: Rows = [[] for _ in prompts]
        texts = [list(prompt) for prompt in prompts]
        for turn in range(turns):
            replies, _ = trainer._generate_single_turn(texts, None, {}, 1)
            for row, reply in zip(said, replies, strict=True):
                row += reply
            if turn < turns - 1:
                texts = [text + reply + ids for text, reply, ids in zip(texts, replies, seen[turn], strict=True)]
        return said

    return step


def check(turns: int) -> None:
    assert ours(turns, 0.0)() == peer(turns, 0.0)(), "greedy conversations differ"


def flops(turns: int) -> float:
    return passes(network("5M"), [PROMPT + turns * WRITTEN + (turns - 1) * READ] * ROWS, ROWS * turns * WRITTEN)
