"""A claims file, a stand-in for ``zoo``, and results made by hand."""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from benchmarks.claims.__main__ import main
from benchmarks.claims.report import Result
from benchmarks.claims.spec import Setting

# Stands for `zoo`: notes how it was called and leaves the files that the real one leaves.
FAKE_ZOO = r"""
import csv, json, os, pathlib, sys, time
verb, given = sys.argv[1], dict(item.removeprefix("--").split("=", 1) for item in sys.argv[2:])
folder = pathlib.Path(given["trainer.default_root_dir"])
with open("calls.jsonl", "a") as log:
    log.write(json.dumps([verb, given, os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"]]) + "\n")
print("hello from", verb)
if given.get("model.fail") == verb:
    sys.exit("the disk is on fire")
if given.get("model.sleep"):
    time.sleep(float(given["model.sleep"]))
while time.process_time() < float(given.get("model.burn", 0)):
    pass
skill, seed = float(given.get("model.skill", 0.5)), int(given["seed_everything"])
if verb == "fit":
    (folder / "weights").mkdir(parents=True)
    with open(folder / "metrics.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", "val/success", "train/episodes", "train/generated_tokens", "train/mean_k"])
        writer.writerow([0, "", 40, 400, 3])
        writer.writerow([1, skill, 80, 800, 2])
        writer.writerow([2, "", 120, 1200, 1])
elif verb == "test":
    assert given["model.weights"].endswith("/weights")
    (folder / "test_metrics.json").write_text(json.dumps({"test/success": skill - seed / 100, "test/turns": 2.0}))
"""

SPEC: dict[str, Any] = {
    "title": "A title",
    "curves": ["train/mean_k"],
    "settings": {
        "small": {
            "config": "config.yaml",
            "overrides": {"data.environment_args": {"steps": 2}, "model.lora": None, "model.flag": True},
            "test_overrides": {"data.test_tasks": 7},
            "budget_episodes": 100,
            "reference": "ours",
            "seeds": 2,
            "secondary_seeds": 1,
            "core": ["theirs", "ours"],
            "secondary": ["extra"],
        }
    },
    "arms": {
        "ours": {"overrides": {"model.skill": 0.9}, "description": "the method"},
        "theirs": {"overrides": {"model.skill": 0.25}},
        "extra": {
            "overrides": {"model.weights": "{more}", "model.pairs": "{pairs}/pairs"},
        },
    },
    "stages": {
        "sft": {"config": "config.yaml", "overrides": {"model.weights": "base"}},
        "more": {"config": "config.yaml", "overrides": {"model.weights": "{sft}"}},
        "pairs": {"config": "config.yaml", "command": "predict"},
    },
    "checks": [{"setting": "small", "arm": "ours", "op": ">=", "value": 0.8}],
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "benchmarks/claims").mkdir(parents=True)
    (tmp_path / "config.yaml").write_text("model: {class_path: X}\n")
    (tmp_path / "zoo.py").write_text(FAKE_ZOO)
    write_spec(tmp_path, SPEC)
    return tmp_path


@pytest.fixture
def call(root: Path) -> Callable[..., int]:
    return lambda *args: main(["demo", *args], root, fake(root))


def fake(root: Path) -> list[str]:
    return [sys.executable, str(root / "zoo.py")]


def write_spec(root: Path, spec: dict[str, Any]) -> None:
    OmegaConf.save(OmegaConf.create(spec), root / "benchmarks/claims/demo.yaml")


def changed(path: str, value: Any) -> dict[str, Any]:
    """The file with one key (``a/b/c``) set, or removed for ``...``."""
    spec = copy.deepcopy(SPEC)
    *parents, last = path.split("/")
    node: Any = spec
    for name in parents:
        node = node[int(name) if isinstance(node, list) else name]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return spec


def calls(root: Path) -> list[tuple[str, dict[str, str]]]:
    log = root / "calls.jsonl"
    return [tuple(json.loads(line)[:2]) for line in log.read_text().splitlines()] if log.exists() else []


def setting(**changes: Any) -> Setting:
    fields: dict[str, Any] = {"name": "s", "title": "", "config": "c.yaml", "overrides": {}, "test_overrides": {}}
    fields |= {"budget_episodes": None, "metric": "test/success", "reference": "a", "core": ("b", "a")}
    return Setting(**{**fields, "secondary": ("c",), "seeds": 3, "secondary_seeds": 2, **changes})


def result(values: list[float], to_level: list[float] | None = None) -> Result:
    count = len(values)
    reached_at = to_level or [math.inf] * count
    return Result(dict(enumerate(values)), [1000.0] * count, [5e4] * count, [12.4] * count, reached_at)
