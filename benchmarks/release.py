"""Make a shipped checkpoint from its config: train, measure on the test tasks, write weights and card.

python -m benchmarks.release base.clue_lock configs/imitation/clue_lock.yaml --task "ClueLock 8 actions x 6 steps"
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path

from omegaconf import OmegaConf

from zoo.cards import SHIPPED
from zoo.registry import create_model


def wilson(share: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """95 % score interval of a share of ``count`` trials (Wilson 1927)."""
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)


def release(name: str, config: str, task: str, summary: str, run: Path) -> None:
    """Train by ``config`` in ``run`` and write ``zoo/weights/<name>.*``."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    common = ["--config", config, "--trainer.default_root_dir", str(run)]
    zoo = [sys.executable, "-m", "zoo"]
    subprocess.run([*zoo, "fit", *common], check=True, env=environment)
    weights = [f"--model.weights={run / 'weights'}", "--model.architecture=null"]
    subprocess.run([*zoo, "test", *common, *weights], check=True, env=environment)
    scores = json.loads((run / "test_metrics.json").read_text())
    settings = OmegaConf.to_container(OmegaConf.load(config))
    assert isinstance(settings, dict)
    episodes = int(settings["data"]["init_args"].get("test_tasks", 1000))
    success = scores["test/success"]
    low, high = wilson(success, episodes)
    command = f"zoo test --config {config} --model.weights {name}"
    metric = {"name": "test/success", "value": success, "low": low, "high": high, "episodes": episodes}
    create_model(run / "weights", pretrained=True).save_pretrained(
        SHIPPED, name, summary=summary, task=task, metric={**metric, "command": command}, training=settings
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", help="of the checkpoint, <family>.<task>")
    parser.add_argument("config", help="the yaml it is trained by")
    parser.add_argument("--task", required=True, help="one line for the card")
    parser.add_argument("--summary", required=True, help="one line for the card")
    parser.add_argument("--run", type=Path, help="folder of the run, runs/release/<name> if absent")
    arguments = parser.parse_args()
    run = arguments.run or Path("runs/release") / arguments.name
    release(arguments.name, arguments.config, arguments.task, arguments.summary, run)


if __name__ == "__main__":
    main()
