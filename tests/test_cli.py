"""What people meet first: quick answers, one line per mistake, no surprise from a checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from zoo.cli import main
from zoo.commands import ZooCLI

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
        ("--model.learnig_rate=3", "did you mean model.learning_rate?"),
        ("--learning_rate=3", "did you mean model.learning_rate?"),
        ("--data.group_sise=3", "did you mean data.group_size?"),
        ("--data.protocol.max_new_token=3", "did you mean data.protocol.max_new_tokens?"),
        ("--trainer.max_epoks=3", "did you mean trainer.max_epochs?"),
        ("--optimizer=SGD", "no option 'optimizer'"),  # the module configures its own
        ("--model=ACTGuidPolicy", "did you mean ACTGuidePolicy?"),
        ("--model=my_package.Method", "No module named 'my_package'"),
        ("--data.protocol=WordProtocl", "did you mean WordProtocol?"),
        ("--trainer.callbacks=LearningCurve", "did you mean LearningCurves?"),
        ("--model.guidance=sometimes", "model.guidance: expected one of 'fallback', 'always', 'never', got sometimes"),
        ("--model.strength=weak", "model.strength: expected one of 'adaptive', 'full' or float, got weak"),
        ("--model.strength=7", "model.strength must be"),
        ("--model.learning_rate=fast", "model.learning_rate: expected float, got fast"),
        ("--model.learning_rate=-1", "model.learning_rate must be at least 0"),
        ("--model.eval_samples=2", "raise eval_temperature"),
        ("--model.weights=base.clue_lok", "did you mean base.clue_lock?"),
        ("--model.weights=pkg:no_such/x.gguf", "the package 'no_such' is not installed"),
        ("--model.lora={'rank': 3}", "model.lora: "),
        ("--data.group_size=0", "data.group_size must be at least 1"),
        ("--data.group_size=1", "data.group_size=1: advantages compare episodes"),
        ("--data.environment=zoo/ClueLok-v0", "did you mean zoo/ClueLock-v0?"),
        ("--data.environment_args={'action': 3}", "data.environment_args: "),
        ("--data.environment_args={'actions': 1}", "data.environment_args: ClueLock: actions must be 2 to 64"),
        ("--data.protocol.max_new_tokens=0", "zoo: protocol.max_new_tokens must be at least 1"),
        ("--data.protocol=ChoiceProtocol", "the policy does not know 30 words of this world and protocol"),
        ("--data.protocol=ChatProtocol", "needs a tokenizer with a chat template"),
        ("--data.micro_batch_tokens=1", "raise data.micro_batch_tokens"),
        ("--trainer.max_epochs=many", "trainer.max_epochs: expected int, got many"),
        ("--trainer.accelerator=gpuu", "invalid accelerator"),
        ("--ckpt_path=nowhere.ckpt", "there is no file nowhere.ckpt"),
        ("--ckpt_path=README.md", "weights go into --model.weights"),
        ("--config=nowhere.yaml", "nowhere.yaml"),
    ],
)
def test_a_mistake_is_one_line(mistake: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in refusal(capsys, "fit", *small(tmp_path), mistake)


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ("learning_rate", "learnig_rate", "did you mean model.learning_rate?"),
        ("group_size: 8", "group_sise: 8", "did you mean data.group_size?"),
        ("max_epochs", "max_epochz", "did you mean trainer.max_epochs?"),
        ("model:", "modle:", "did you mean model."),
        ("ACTGuidePolicy", "ACTGuidPolicy", "did you mean ACTGuidePolicy?"),
        ("WordProtocol", "WordProtocool", "did you mean WordProtocol?"),
        ("guidance: fallback", "guidance: fallbak", "model.guidance: expected one of 'fallback', 'always', 'never'"),
        ("group_size: 8", "group_size: many", "data.group_size: expected int, got many"),
        ("max_turns: 6", "max_turns: ${data.nowhere}", "data.nowhere"),
        ("model:", "model: [", "line"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(
    right: str, wrong: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, text = tmp_path / "typo.yaml", (ROOT / CONFIG).read_text()
    assert right in text
    config.write_text(text.replace(right, wrong))
    assert expected in refusal(capsys, "fit", f"--config={config}", "--trainer.accelerator=cpu")


def test_unknown_checkpoints_and_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert "base.clue_lock" in refusal(capsys, "show", "base.clue_lok")
    assert "usage: zoo show NAME" in refusal(capsys, "show")
    assert "usage: zoo list [PATTERN]" in refusal(capsys, "list", "a", "b")
    assert "did you mean fit?" in refusal(capsys, "fot")
    assert "give a --config" in refusal(capsys, "fit")


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
    main(["fit", *small(trained, "--data.val_tasks=1")])  # again into the same folder
    assert "val_tasks: 1" in (trained / "config.yaml").read_text()


def test_the_command_line_wins_over_a_checkpoint_and_says_so(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = trained / "checkpoints" / "last.ckpt"
    with caplog.at_level("INFO"):
        main(["test", *small(tmp_path, f"--ckpt_path={checkpoint}", "--model.probes=4", "--data.test_tasks=2")])
    assert "model.probes is 4 in this run; the checkpoint was made with 2" in caplog.text
    assert "TPU" not in caplog.text
    cli = ZooCLI(["validate", *small(tmp_path, f"--ckpt_path={checkpoint}", "--model.probes=4")])
    assert cli.model.hparams.probes == 4


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


def test_a_checkpoint_without_its_world_says_what_is_missing(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "test.data" in refusal(capsys, "test", f"--ckpt_path={trained / 'checkpoints' / 'last.ckpt'}")


def test_a_saved_config_runs_again(trained: Path, tmp_path: Path) -> None:
    checkpoint = f"--ckpt_path={trained / 'checkpoints' / 'last.ckpt'}"
    main(["test", f"--config={trained / 'config.yaml'}", f"--trainer.default_root_dir={tmp_path}", checkpoint])
    assert (tmp_path / "test_metrics.json").exists()


def test_prediction_leaves_the_episodes(trained: Path, tmp_path: Path) -> None:
    main(["predict", *small(tmp_path, "--data.test_tasks=3")])
    episodes = [json.loads(line) for line in (tmp_path / "trajectories.jsonl").read_text().splitlines()]
    assert len(episodes) == 3
    assert all(episode["turns"] for episode in episodes)


def test_a_dry_run_leaves_no_weights(tmp_path: Path) -> None:
    main(["fit", *small(tmp_path, "--trainer.fast_dev_run=true")])
    assert not (tmp_path / "weights").exists()


def test_classes_and_worlds_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_package.py").write_text(
        "import gymnasium\nfrom datamodules.environments.clue_lock import ClueLock\nfrom zoo import AgentModule\n"
        "class Mine(AgentModule):\n    pass\n"
        "gymnasium.register('my/World-v0', ClueLock)\n"
    )
    monkeypatch.chdir(tmp_path)
    data = ["--data=RolloutDataModule", "--data.environment=my_package:my/World-v0", "--data.test_tasks=2"]
    main(["test", "--model=my_package.Mine", "--model.weights=base.clue_lock", *data])
    assert (tmp_path / "runs" / "latest" / "test_metrics.json").exists()


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
