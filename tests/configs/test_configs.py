"""Every config of the zoo trains and tests, made small on the command line."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from zoo.commands import run

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
SMALL = {
    "trainer.max_epochs": 1,
    "trainer.check_val_every_n_epoch": 1,
    "trainer.accelerator": "cpu",
    "data.tasks_per_iteration": 2,
    "data.val_tasks": 2,
    "data.test_tasks": 2,
}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: str(path.relative_to(ROOT / "configs")))
def test_config_fits_and_tests(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = importlib.util.find_spec("textworld_express") is not None and shutil.which("java") is not None
    if "TextWorldExpress" in config.read_text() and not here:
        pytest.skip("needs the extra `worlds` and a Java runtime")
    common = [f"--config={config}", f"--trainer.default_root_dir={tmp_path}"]
    common += [f"--{key}={value}" for key, value in SMALL.items()]
    run(["fit", *common])
    assert (tmp_path / "metrics.csv").exists()
    weights = [f"--model.weights={tmp_path / 'weights'}"]
    if OmegaConf.load(config).model.init_args.get("architecture"):
        weights.append("--model.architecture=null")
    run(["test", *common, *weights])
    assert 0 <= json.loads((tmp_path / "test_metrics.json").read_text())["test/success"] <= 1
    assert len((tmp_path / "trajectories.jsonl").read_text().splitlines()) == 2


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
