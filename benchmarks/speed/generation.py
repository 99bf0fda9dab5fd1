"""Tokens per CPU-second of one model in several worlds: ``python -m benchmarks.speed.generation``, kept in ``results/``.

A world in which the policy writes as much as it reads shows the cost of a token; one in which it reads pages shows what reading
adds. The same architecture plays everywhere, untrained in the worlds it has no weights for, so only lengths differ.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import torch

import datamodules  # noqa: F401  registers the worlds
from zoo.policy import CausalPolicy, load_policy, word_policy
from zoo.rollout.context import AppendOnly
from zoo.rollout.loop import Stage, play
from zoo.rollout.memory import SelectiveMemory
from zoo.rollout.protocol import WordProtocol
from zoo.rollout.trajectory import Job, Task

_RESULT = Path(__file__).parent / "results" / "generation.json"
_EPISODES, _REPEATS = 128, 5
_SHAPE = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def worlds(name: str, **options: Any) -> Callable[[int], list[gymnasium.Env[str, str]]]:
    return lambda count: [gymnasium.make(name, **options).unwrapped for _ in range(count)]


def measure(policy: CausalPolicy, stage: Stage, repeat: int) -> tuple[float, float]:
    """Tokens written and tokens through the model (each row's once), per CPU-second."""
    start = time.process_time()
    jobs = [Job(Task(seed, "train"), seed) for seed in range(_EPISODES)]
    played = play(policy, stage, jobs, temperature=1.0, generator=torch.Generator().manual_seed(repeat))
    seconds = time.process_time() - start
    rows = [segment for trajectory in played for segment in trajectory.segments]
    return sum(sum(row.mask) for row in rows) / seconds, sum(len(row.ids) for row in rows) / seconds


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    pages = load_policy("base.page_hunt").eval()
    shape = {key: pages.model.config.to_dict()[key] for key in (*_SHAPE, "max_position_embeddings")}
    lock = worlds("zoo/ClueLock-v0", actions=8, steps=6, clues=16)
    memory = SelectiveMemory(max_tokens=88, boundary_tokens=96, choose=3, recent=1, selection_tokens=6)
    cases = {
        "ClueLock": (
            word_policy(shape, list(lock(1)[0].vocabulary)).eval(),
            Stage(WordProtocol(), AppendOnly(256), 6, lock),
        ),
        "PageHunt": (pages, Stage(WordProtocol(11), memory, 60, worlds("zoo/PageHunt-v0"))),
    }
    # In turns, as a machine's speed drifts; the first round warms up.
    rounds = [{name: measure(*case, repeat) for name, case in cases.items()} for repeat in range(_REPEATS + 1)][1:]
    found = {
        name: [statistics.median(kind) for kind in zip(*(one[name] for one in rounds), strict=True)] for name in cases
    }
    ratios = {
        name: [statistics.median(one[name][kind] / one["ClueLock"][kind] for one in rounds) for kind in (0, 1)]
        for name in cases
    }
    table = {
        name: {
            "written": round(written),
            "through": round(through),
            "of ClueLock": [round(ratio, 2) for ratio in ratios[name]],
        }
        for name, (written, through) in found.items()
    }
    _RESULT.parent.mkdir(exist_ok=True)
    _RESULT.write_text(
        json.dumps(
            {"machine": platform.machine(), "torch": torch.__version__, "tokens per CPU-second": table}, indent=2
        )
        + "\n"
    )
    print(_RESULT.read_text())


if __name__ == "__main__":
    main()
