"""``zoo fit|validate|test|predict``: LightningCLI with the zoo's defaults and readable errors."""

from __future__ import annotations

import difflib
import inspect
import json
import logging
import re
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, RichProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_info

import datamodules  # noqa: F401 - so that bare class names resolve
from callbacks import LearningCurves, TrajectoryLog
from datamodules import RolloutDataModule
from zoo.agent import AgentModule
from zoo.cards import WeightsError
from zoo.errors import ConfigError
from zoo.registry import BUILT_IN, model_class
from zoo.rollout.context import ContextManager
from zoo.rollout.protocol import Protocol


class ZooParser(LightningArgumentParser):
    """Says in one line what is wrong and what was probably meant."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:
            super().error(message, ex)  # one of several types being tried
        sys.exit(_exit_line(readable(message)))


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
        if not path or not Path(path).is_file():
            return
        stored = torch.load(path, weights_only=True, map_location="cpu").get("hyper_parameters", {})
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
    """One LightningCLI command; ends the process with status 2 and one line on a configuration that cannot work."""
    _hush()
    try:
        ZooCLI(args + model_of_checkpoint(args))
    except (ConfigError, WeightsError) as error:
        sys.exit(_exit_line(str(error)))


def _hush() -> None:
    """Leave out what Lightning says to everybody and nobody here can act on."""
    for text in (".*treespec, LeafSpec", ".*module.s. in eval mode", ".*does not have many workers"):
        warnings.filterwarnings("ignore", message=text)
    advert = ("litlogger", "litmodels")
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addFilter(lambda record: not any(word in record.getMessage() for word in advert))


def model_of_checkpoint(args: list[str]) -> list[str]:
    """``--model`` as a checkpoint remembers it, where ``--ckpt_path`` is given and nothing says which model."""
    paths = [after for arg, after in zip(args, [*args[1:], ""], strict=True) if arg == "--ckpt_path"]
    paths += [arg.partition("=")[2] for arg in args if arg.startswith("--ckpt_path=")]
    if not paths or not Path(paths[-1]).is_file() or any(arg.startswith(("--model", "--config", "-c")) for arg in args):
        return []
    stored = torch.load(paths[-1], weights_only=True, map_location="cpu")
    settings = {key: value for key, value in stored["hyper_parameters"].items() if not key.startswith("_")}
    return ["--model", json.dumps({"class_path": stored["zoo_class"], "init_args": settings})]


def _exit_line(message: str) -> int:
    print(f"zoo: {message}", file=sys.stderr)
    return 2


def readable(message: str) -> str:
    """The telling part of a jsonargparse message, with the nearest valid name where one was misspelt."""
    union = re.search(
        r"Errors:\n(.*?)\n\s*(?:- Expected a <class 'NoneType'>\n\s*)?Given value type", message, re.DOTALL
    )
    key = re.search(r'(?:Parser key|Key) "?([\w.]+)"?', message)
    text = " ".join((union.group(1) if union else message).split()).removeprefix("- ")
    text = re.sub(r"- Expected a <class 'NoneType'>", "", text).strip()
    if union and key:
        text = f"{key.group(1)}: {text}"
    wrong = re.search(
        r"Option '([\w.]+)' is not accepted|dot import path string: (\w+)|nrecognized arguments: --([\w.]+)", message
    )
    if wrong is None:
        return text
    name = next(filter(None, wrong.groups())).split(".")[-1]
    nearest = difflib.get_close_matches(name, _known_names(), n=1)
    what = "class" if name[0].isupper() else "option"
    hint = f"did you mean {nearest[0]}?" if nearest else "see `zoo fit --help`"
    return f"no {what} {name!r} here: {hint}"


def _known_names() -> set[str]:
    """Names of the classes a config may use and of their arguments."""
    names = set(inspect.signature(Trainer).parameters)
    for base in (AgentModule, RolloutDataModule, Protocol, ContextManager):
        for known in {base, *_subclasses(base)}:
            names |= {known.__name__, *inspect.signature(known).parameters} - {"kwargs"}
    return names


def _subclasses(base: type) -> set[type]:
    direct: set[type] = set(base.__subclasses__())
    return direct.union(*(_subclasses(known) for known in direct))
