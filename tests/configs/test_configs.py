"""Every config of the zoo trains and tests, made small on the command line."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from zoo.commands import run

ROOT = Path(__file__).parents[2]
STAGE = re.compile(r"\d+_(\w+?)_")
ALL = sorted((ROOT / "configs").rglob("*.yaml"))
CONFIGS = [path for path in ALL if not STAGE.match(path.name)]
CHAINS = sorted({path.parent for path in ALL if STAGE.match(path.name)})
SMALL = {
    "trainer.max_epochs": 1,
    "trainer.check_val_every_n_epoch": 1,
    "trainer.accelerator": "cpu",
    "data.tasks_per_iteration": 2,
    "data.val_tasks": 2,
    "data.test_tasks": 2,
}
SMALL_TRAJECTORIES = '{"train": 3, "val": 1, "test": 1}'


def small(config: Path) -> dict[str, object]:
    """What makes a run of a config short."""
    return SMALL | ({"data.trajectories": SMALL_TRAJECTORIES} if "trajectories:" in config.read_text() else {})


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: str(path.relative_to(ROOT / "configs")))
def test_config_fits_and_tests(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = importlib.util.find_spec("textworld_express") is not None and shutil.which("java") is not None
    if "TextWorldExpress" in config.read_text() and not here:
        pytest.skip("needs the extra `worlds` and a Java runtime")
    if "ALFWorld" in config.read_text() and importlib.util.find_spec("alfworld") is None:
        pytest.skip("needs the extra `alfworld`")
    common = [f"--config={config}", f"--trainer.default_root_dir={tmp_path}"]
    common += [f"--{key}={value}" for key, value in small(config).items()]
    run(["fit", *common])
    assert (tmp_path / "metrics.csv").exists()
    weights = [f"--model.weights={tmp_path / 'weights'}"]
    if OmegaConf.load(config).model.init_args.get("architecture"):
        weights.append("--model.architecture=null")
    run(["test", *common, *weights])
    assert 0 <= json.loads((tmp_path / "test_metrics.json").read_text())["test/success"] <= 1
    assert len((tmp_path / "trajectories.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("folder", CHAINS, ids=lambda path: str(path.relative_to(ROOT / "configs")))
def test_stages_lead_to_a_test(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage reads what those before it wrote; the last one plays episodes."""
    if folder.name == "alfworld" and importlib.util.find_spec("alfworld") is None:
        pytest.skip("needs the extra `alfworld`")
    monkeypatch.setenv("RUN", str(tmp_path))
    for config in sorted(folder.glob("*.yaml")):
        command = STAGE.match(config.name)[1]  # type: ignore[index]
        run([command, f"--config={config}", *(f"--{key}={value}" for key, value in small(config).items())])
    found = json.loads((tmp_path / "test" / "test_metrics.json").read_text())
    assert 0 <= found["test/success"] <= 1
    assert len((tmp_path / "test" / "trajectories.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("name", ["echo", "fact_hunt"])
def test_arms_that_change_the_memory_keep_its_budget(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Another class keeps only those settings of the config that its signature names, and takes its defaults for the rest."""
    claims = OmegaConf.load(ROOT / "benchmarks" / "claims" / f"{name}.yaml")
    config = ROOT / claims.settings.masked.config
    budget = OmegaConf.load(config).data.init_args.context.init_args.max_tokens
    for arm, settings in claims.arms.items():
        overrides = [f"--{key}={value}" for key, value in settings.get("overrides", {}).items()]
        with pytest.raises(SystemExit):
            run(["fit", f"--config={config}", *overrides, "--print_config"])
        shown = OmegaConf.create(capsys.readouterr().out)
        assert shown.data.init_args.context.init_args.max_tokens == budget, arm
