"""What people meet first: quick answers, one line per mistake, no surprise from a checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from zoo.cli import main

CONFIG = "configs/actguide/clue_lock.yaml"
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def refusal(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line a refused command prints."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    assert stop.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("zoo: ")]
    assert len(lines) == 1
    return lines[0]


def small(folder: Path, *more: str) -> list[str]:
    shape = ["--data.tasks_per_iteration=4", "--data.group_size=8", "--data.val_tasks=2", "--trainer.accelerator=cpu"]
    shape.append(
        '--data.environment_args={"actions": 2, "steps": 1}'
    )  # some rewards, so that there is something to learn
    return [f"--config={CONFIG}", f"--trainer.default_root_dir={folder}", "--trainer.max_epochs=1", *shape, *more]


@pytest.mark.parametrize("command", [["--help"], ["list"], ["show", "base.clue_lock"]])
def test_quick_answers_need_no_torch_and_less_than_a_second(command: list[str]) -> None:
    code = (
        "import sys, time; from zoo.cli import main; main(sys.argv[1:]);"
        "assert not {'torch', 'lightning', 'transformers'} & sys.modules.keys();"
        "assert time.process_time() < 1.0, time.process_time()"
    )
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "clue_lock" in done.stdout


@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        (["--model.learnig_rate=3"], "did you mean learning_rate?"),
        (["--data.group_sise=3"], "did you mean group_size?"),
        (["--trainer.max_epoks=3"], "did you mean max_epochs?"),
        (["--model=ACTGuidPolicy"], "did you mean ACTGuidePolicy?"),
        (["--model.guidance=sometimes"], "'fallback', 'always', 'never'"),
        (["--model.weights=base.clue_lok"], "did you mean base.clue_lock?"),
        (["--data.group_size=0"], "data.group_size must be at least 1"),
        (["--data.group_size=1"], "data.group_size=1: advantages compare episodes"),
        (["--data.environment=zoo/ClueLok-v0"], "the zoo has zoo/ClueLock-v0"),
        (["--model.strength=7"], "model.strength"),
    ],
)
def test_a_mistake_is_one_line(
    mistake: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in refusal(capsys, "fit", *small(tmp_path), *mistake)


@pytest.mark.parametrize(("wrong", "right"), [("learning_rate", "learnig_rate"), ("ACTGuidePolicy", "ACTGuidPolicy")])
def test_a_mistake_in_a_file_is_one_line(
    wrong: str, right: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "typo.yaml"
    config.write_text((ROOT / CONFIG).read_text().replace(wrong, right))
    assert f"did you mean {wrong}?" in refusal(capsys, "fit", f"--config={config}")


def test_unknown_checkpoints_and_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert "base.clue_lock" in refusal(capsys, "show", "base.clue_lok")
    assert "usage: zoo show NAME" in refusal(capsys, "show")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        main(["fit", *small(folder)])
    return folder


def test_a_run_leaves_what_the_readme_says(trained: Path) -> None:
    for name in (
        "config.yaml",
        "metrics.csv",
        "checkpoints/last.ckpt",
        "weights/card.json",
        "weights/model.safetensors",
    ):
        assert (trained / name).exists(), name
    main(["fit", *small(trained)])  # again into the same folder


def test_the_command_line_wins_over_a_checkpoint_and_says_so(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = trained / "checkpoints" / "last.ckpt"
    with caplog.at_level("INFO"):
        main(["test", *small(tmp_path, f"--ckpt_path={checkpoint}", "--model.probes=4", "--data.test_tasks=2")])
    assert "model.probes is 4 in this run; the checkpoint was made with 2" in caplog.text


def test_a_checkpoint_of_another_class_is_refused_by_name(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from zoo import AgentModule, ImitationPolicy

    checkpoint = trained / "checkpoints" / "last.ckpt"
    other = ["--data=RolloutDataModule", "--model=AgentModule", "--model.weights=base.clue_lock"]
    message = refusal(capsys, "test", *other, f"--trainer.default_root_dir={tmp_path}", f"--ckpt_path={checkpoint}")
    assert "made by ACTGuidePolicy, not by AgentModule" in message
    for wrong in (AgentModule, ImitationPolicy):
        with pytest.raises(ValueError, match="ACTGuidePolicy"):
            wrong.load_from_checkpoint(checkpoint)


def test_a_checkpoint_knows_its_model(trained: Path, tmp_path: Path) -> None:
    checkpoint = trained / "checkpoints" / "last.ckpt"
    data = ["--data=RolloutDataModule", "--data.test_tasks=2", "--data.max_turns=6"]
    main(["test", *data, f"--trainer.default_root_dir={tmp_path}", f"--ckpt_path={checkpoint}"])
    assert "class_path: zoo.ACTGuidePolicy" in (tmp_path / "config.yaml").read_text()


def test_checkpoints_hold_plain_data_and_reload(trained: Path) -> None:
    from zoo import ACTGuidePolicy

    checkpoint = trained / "checkpoints" / "last.ckpt"
    stored: dict[str, Any] = torch.load(checkpoint, weights_only=True)
    assert stored["hyper_parameters"]["guidance"] == "fallback"
    assert ACTGuidePolicy.load_from_checkpoint(checkpoint).hparams.kl_coef == 0.03


def test_interpolation_in_a_file(tmp_path: Path) -> None:
    config = tmp_path / "linked.yaml"
    config.write_text(
        (ROOT / CONFIG).read_text().replace("max_turns: 6", "max_turns: ${data.init_args.tasks_per_iteration}")
    )
    main(["fit", *[argument.replace(CONFIG, str(config)) for argument in small(tmp_path)]])
    assert "max_turns: 16" in (tmp_path / "config.yaml").read_text()
