"""A chain of stages: in order, once, resumed where it stopped, again where something before it changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zoo import stages
from zoo.errors import ConfigError


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[list[str]], set[str]]:
    """A folder of three stages, the commands that were run, and the stages that are to fail; each writes its number."""
    monkeypatch.setenv("RUN", str(tmp_path / "run"))
    folder, calls, broken = tmp_path / "chain", [], set[str]()
    folder.mkdir()
    for number, command in ((1, "predict"), (2, "fit"), (10, "test")):
        config = f"trainer:\n  default_root_dir: ${{oc.env:RUN}}/{number}\ndata:\n  pairs: ${{oc.env:RUN}}/{number - 1}/out\n"
        (folder / f"{number}_{command}_x.yaml").write_text(config)

    def run(command: list[str], check: bool) -> Any:
        calls.append(command[3:])
        number = Path(command[5]).name.split("_")[0]
        (tmp_path / "run" / number / "out").write_text(number)
        return subprocess.CompletedProcess(command, int(number in broken))

    monkeypatch.setattr(stages.subprocess, "run", run)
    return folder, calls, broken


def test_stages_run_in_the_order_of_their_numbers_and_once(chain: Any) -> None:
    folder, calls, _ = chain
    told = stages.run_stages(str(folder), ["--seed_everything=3"])
    assert told.splitlines() == ["1_predict_x.yaml: done", "2_fit_x.yaml: done", "10_test_x.yaml: done"]
    assert [call[0] for call in calls] == ["predict", "fit", "test"]
    assert calls[1][1:] == ["--config", str(folder / "2_fit_x.yaml"), "--seed_everything=3"]
    assert "done before" in stages.run_stages(str(folder), ["--seed_everything=3"])
    assert len(calls) == 3
    stages.run_stages(str(folder), ["--seed_everything=4"])
    assert len(calls) == 6


def test_what_depends_on_a_change_is_run_again(chain: Any, tmp_path: Path) -> None:
    folder, calls, _ = chain
    stages.run_stages(str(folder), [])
    (tmp_path / "run" / "1" / "out").write_text("other pairs")
    told = stages.run_stages(str(folder), [])
    assert told.splitlines() == ["1_predict_x.yaml: done before", "2_fit_x.yaml: done", "10_test_x.yaml: done before"]
    (folder / "10_test_x.yaml").write_text((folder / "10_test_x.yaml").read_text() + "model: ACTCritic\n")
    assert stages.run_stages(str(folder), []).count("done before") == 2
    assert len(calls) == 5


def test_an_interrupted_fit_goes_on_from_its_checkpoint(chain: Any, tmp_path: Path) -> None:
    folder, calls, broken = chain
    broken.add("2")
    with pytest.raises(ConfigError, match=r"2_fit_x.yaml failed"):
        stages.run_stages(str(folder), [])
    assert json.loads((tmp_path / "run" / "2" / "stage.json").read_text())["done"] is False
    last = tmp_path / "run" / "2" / "checkpoints" / "last.ckpt"
    last.parent.mkdir()
    last.write_text("")
    broken.clear()
    told = stages.run_stages(str(folder), [])
    assert told.splitlines() == [
        "1_predict_x.yaml: done before",
        "2_fit_x.yaml: resumed and done",
        "10_test_x.yaml: done",
    ]
    assert calls[-2][-2:] == ["--ckpt_path", str(last)]


def test_what_is_no_chain_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found nothing"):
        stages.run_stages(str(tmp_path), [])
    (tmp_path / "clue_lock.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"found clue_lock\.yaml"):
        stages.run_stages(str(tmp_path), [])
    (tmp_path / "clue_lock.yaml").rename(tmp_path / "1_fit.yaml")
    with pytest.raises(ConfigError, match=r"1_fit.yaml: a stage needs trainer.default_root_dir"):
        stages.run_stages(str(tmp_path), [])


def test_a_chain_by_command(tmp_path: Path) -> None:
    root = tmp_path / "run"
    (tmp_path / "1_test.yaml").write_text(
        f"trainer: {{default_root_dir: {root}, accelerator: cpu}}\n"
        "model: {class_path: AgentModule, init_args: {weights: base.clue_lock}}\n"
        "data: {class_path: RolloutDataModule, init_args: {test_tasks: 2, max_turns: 2}}\n"
    )
    command = [sys.executable, "-m", "zoo", "run", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "1_test.yaml: done"
    assert (root / "test_metrics.json").exists()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1_test.yaml: done before\n"
