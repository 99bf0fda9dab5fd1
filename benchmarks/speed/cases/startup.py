"""What a user waits for before anything happens."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.speed.worker import Step

PEER = "nothing"
FIT = ["fit", "--config", "configs/actguide/clue_lock.yaml"]
VARIANTS: dict[str, dict[str, Any]] = {
    "zoo --help": {"arguments": ["--help"]},
    "zoo list": {"arguments": ["list"]},
    "zoo fit, one iteration and the end": {
        "arguments": [*FIT, "--trainer.max_epochs=1", "--trainer.limit_val_batches=0"]
    },
}


def ours(arguments: list[str]) -> Step:
    folder = ["--trainer.default_root_dir", tempfile.mkdtemp()] if "fit" in arguments else []
    return lambda: subprocess.run([sys.executable, "-m", "zoo", *arguments, *folder], check=True, capture_output=True)


def check(arguments: list[str]) -> None:
    ours(arguments)()
