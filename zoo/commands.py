"""``zoo fit|validate|test|predict``: LightningCLI with the zoo's defaults and readable errors."""

from __future__ import annotations

import json
import logging
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, RichProgressBar
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.utilities import rank_zero_info
from omegaconf.errors import OmegaConfBaseException

import datamodules  # noqa: F401 - so that bare class names resolve
import zoo.rollout.memory  # noqa: F401 - likewise
from callbacks import LearningCurves, TrajectoryLog
from datamodules import RolloutDataModule
from zoo.agent import AgentModule
from zoo.errors import ConfigError
from zoo.mistakes import ZooParser, readable
from zoo.registry import BUILT_IN, model_class

_ADVERTS = ("litlogger", "litmodels", "TPU available", "GPU available: False")


class ZooCLI(LightningCLI):
    """Checkpoint, curves and evaluated episodes land in ``trainer.default_root_dir``; the trained policy in its ``weights``."""

    def __init__(self, args: list[str]) -> None:
        for name in BUILT_IN:
            model_class(name)  # so that bare class names resolve
        super().__init__(
            AgentModule,
            RolloutDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            save_config_kwargs={"overwrite": True},
            trainer_defaults={
                "logger": False,
                "log_every_n_steps": 1,
                "num_sanity_val_steps": 0,
                "enable_model_summary": False,
            },
            parser_class=ZooParser,
            parser_kwargs={"parser_mode": "omegaconf"},
            auto_configure_optimizers=False,
            args=None if args == sys.argv[1:] else args,  # Lightning warns of arguments that come from elsewhere
        )

    def _parse_ckpt_path(self) -> None:
        """The command line and the config win over what a checkpoint was trained with; differences are announced."""
        config = self.config[self.config["subcommand"]]
        path, given = config.get("ckpt_path"), config["model"]
        if not path or path in ("best", "last", "hpc") or "://" in path:  # Lightning finds those
            return
        stored = read_checkpoint(path)["hyper_parameters"]
        for key, value in (given.get("init_args") or {}).items():
            if key in stored and stored[key] != value:
                rank_zero_info(f"model.{key} is {value} in this run; the checkpoint was made with {stored[key]}")

    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except ValueError as error:  # jsonargparse wraps what a constructor has to say
            raise ConfigError(readable(str(error))) from error

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        """Add what every run has unless the config brings its own."""
        config["default_root_dir"] = str(config.get("default_root_dir") or "runs/latest")
        standard: list[Callback] = [RichProgressBar(), LearningCurves(), TrajectoryLog()]
        if config.get("enable_checkpointing") is not False:
            folder = Path(config["default_root_dir"]) / "checkpoints"
            standard.append(ModelCheckpoint(folder, "last", save_on_train_epoch_end=True, enable_version_counter=False))
        given = config.get("callbacks") or []
        given = given if isinstance(given, list) else [given]
        kinds = tuple(type(callback) for callback in given)
        config["callbacks"] = [*given, *(callback for callback in standard if not issubclass(type(callback), kinds))]
        return super()._instantiate_trainer(config, callbacks)

    def after_fit(self) -> None:
        if self.trainer.is_global_zero and not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            self.model.save_pretrained(Path(self.trainer.default_root_dir) / "weights")

    def after_test(self) -> None:
        if self.trainer.is_global_zero:
            metrics = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
            path = Path(self.trainer.default_root_dir) / "test_metrics.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(metrics, indent=2) + "\n")


def run(args: list[str]) -> None:
    """One LightningCLI command.

    Raises:
        ConfigError, WeightsError: a configuration that cannot work; options that do not exist end the process.
    """
    _hush()
    if "" not in sys.path:
        sys.path.append("")  # so that classes of the user's own are found from the `zoo` script as from `python -m zoo`
    try:
        ZooCLI(args + model_of_checkpoint(args))
    except (MisconfigurationException, OmegaConfBaseException) as error:
        raise ConfigError(str(error)) from error


def _hush() -> None:
    """Leave out what Lightning says to everybody and nobody here can act on."""
    for text in ("treespec, LeafSpec", "module.s. in eval mode", "does not have many workers", "dirpath has changed"):
        warnings.filterwarnings("ignore", message=f".*{text}")
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(_no_advert)


def _no_advert(record: logging.LogRecord) -> bool:
    return not any(word in record.getMessage() for word in _ADVERTS)


def model_of_checkpoint(args: list[str]) -> list[str]:
    """``--model`` as a checkpoint remembers it, where ``--ckpt_path`` is given and nothing says which model."""
    paths = [after for arg, after in zip(args, [*args[1:], ""], strict=True) if arg == "--ckpt_path"]
    paths += [arg.partition("=")[2] for arg in args if arg.startswith("--ckpt_path=")]
    if not paths or any(arg.startswith(("--model", "--config", "-c")) for arg in args):
        return []
    stored = read_checkpoint(paths[-1])
    settings = {key: value for key, value in stored["hyper_parameters"].items() if not key.startswith("_")}
    return ["--model", json.dumps({"class_path": stored["zoo_class"], "init_args": settings})]


def read_checkpoint(path: str) -> dict[str, Any]:
    """A checkpoint of a run, which holds plain data only.

    Raises:
        ConfigError: no such file, or one that ``zoo fit`` did not write.
    """
    if not Path(path).is_file():
        raise ConfigError(f"ckpt_path: there is no file {path}")
    try:
        stored = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ConfigError(f"ckpt_path: {path} is no checkpoint of a run; weights go into --model.weights") from error
    if "zoo_class" not in stored:
        raise ConfigError(f"ckpt_path: {path} is a checkpoint of another program")
    return dict(stored)
