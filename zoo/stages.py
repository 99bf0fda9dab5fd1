"""``zoo run FOLDER``: a chain of stages, each a ``zoo`` command with a config of its own, in the order of their numbers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from zoo.errors import ConfigError

_NAME = re.compile(r"(\d+)_(fit|validate|test|predict)(_\w+)?\.yaml")


def run_stages(folder: str, options: list[str]) -> str:
    """Run the stages of a folder, ``1_predict_pairs.yaml``, ``2_fit_critic.yaml`` and so on.

    A stage that was finished with the same config, options and input files (whatever paths its config names) is left out; a
    ``fit`` that was interrupted goes on from its last checkpoint. What a stage is waiting for is known by paths only, so stages
    read what earlier ones wrote.

    Args:
        folder: with the configs.
        options: handed to every stage, so only keys that all have.

    Returns:
        What was done, in a line per stage.

    Raises:
        ConfigError: no stages there, a config that cannot be read, or a stage that failed.
    """
    files = sorted(
        Path(folder).glob("*.yaml"), key=lambda path: int(path.name.split("_")[0]) if _NAME.fullmatch(path.name) else -1
    )
    if not files or not _NAME.fullmatch(files[0].name):
        odd = files[0].name if files else "nothing"
        raise ConfigError(f"{folder}: stages are called like 2_fit_critic.yaml (number, command, name); found {odd}")
    return "\n".join(f"{path.name}: {_run(path, options)}" for path in files)


def _run(path: Path, options: list[str]) -> str:
    command = path.name.split("_")[1].removesuffix(".yaml")
    try:
        config: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
        root = Path(config["trainer"].pop("default_root_dir"))
    except (OmegaConfBaseException, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: a stage needs trainer.default_root_dir: {error}") from error
    marker, print_ = root / "stage.json", _fingerprint(config, options)
    past = json.loads(marker.read_text()) if marker.is_file() else {}
    same, last = past.get("fingerprint") == print_, root / "checkpoints" / "last.ckpt"
    if same and past["done"]:
        return "done before"
    resumes = same and command == "fit" and last.is_file()
    root.mkdir(parents=True, exist_ok=True)
    marker.write_text(json.dumps({"fingerprint": print_, "done": False}))
    more = ["--ckpt_path", str(last)] if resumes else []
    done = subprocess.run([sys.executable, "-m", "zoo", command, "--config", str(path), *options, *more], check=False)
    if done.returncode:
        raise ConfigError(f"{path} failed, see above; the stages before it are kept")
    marker.write_text(json.dumps({"fingerprint": print_, "done": True}))
    return "resumed and done" if resumes else "done"


def _fingerprint(config: Any, options: list[str]) -> str:
    """Of everything a stage depends on: its config, the options, the content of the files that the config names."""
    files = [
        file for path in sorted(set(_paths(config))) for file in ([path] if path.is_file() else sorted(path.rglob("*")))
    ]
    contents = [sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
    return sha256(json.dumps([config, options, contents]).encode()).hexdigest()


def _paths(value: Any) -> Iterator[Path]:
    """The paths in a config that exist."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _paths(part)
    elif isinstance(value, str) and "/" in value and Path(value).exists():
        yield Path(value)
