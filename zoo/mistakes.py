"""What LightningCLI says of a mistake, told in one line with the nearest valid name."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from typing import NoReturn

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import LightningArgumentParser

from datamodules import RolloutDataModule
from zoo.agent import AgentModule
from zoo.cli import fail
from zoo.rollout.context import ContextManager
from zoo.rollout.protocol import Protocol

_SECTIONS = {
    "trainer": Trainer,
    "model": AgentModule,
    "data": RolloutDataModule,
    "data.protocol": Protocol,
    "data.context": ContextManager,
}
# jsonargparse tells of every type it tried; these lines of it name no mistake.
_NOISE = (
    "Expected a <class 'NoneType'>",
    "Does not validate",
    "Subtypes:",
    "Errors:",
    "Expected a path",
    "Problem with given class_path",
    "Given value",
)


class ZooParser(LightningArgumentParser):
    """Says in one line what is wrong and what was probably meant."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:
            super().error(message, ex)  # one of several types being tried
        sys.exit(fail(readable(message)))


def readable(message: str) -> str:
    """The telling part of a message of jsonargparse.

    Args:
        message: one line, or a tree of the types that were tried, nested as the keys of the config are.
    """
    key = ".".join(dict.fromkeys(re.findall(r'Parser key "([\w.]+)"', message)))
    if wrong := re.search(r"dot import path string: (\w+)", message):
        return _misspelt("class", wrong.group(1), _classes())
    if wrong := re.search(r"nrecognized arguments: --([\w.]+)|does not accept option '([\w.]+)'", message):
        return _misspelt("option", wrong.group(1) or wrong.group(2), _options())
    if wrong := re.search(r"Option '([\w.]+)' is not accepted", message):
        return _misspelt("option", f"{key}.{wrong.group(1)}" if key else wrong.group(1), _options())
    lines = (re.sub(r'^(- )?(Parser key "[\w.]+":)? *', "", line.strip()) for line in message.splitlines())
    telling = " ".join(dict.fromkeys(line for line in lines if line and not line.startswith(_NOISE)))
    text = _expectation(message, telling) if key else telling
    if text.startswith("the following arguments are required"):
        text += ": name them, or give a --config that does"
    return f"{key}: {text}" if key else text


def _expectation(message: str, telling: str) -> str:
    """``expected int, got many``, where types are all that the message is about."""
    types = re.findall(r"Expected a (?:<class '([\w.]+)'>|typing\.Literal\[(.*?)\])", telling)
    if not types:
        return telling
    names = [kind or f"one of {literal}" for kind, literal in types]
    value = re.search(r"(?:Got value|Given value): (.*)", message)
    return f"expected {' or '.join(names)}" + (f", got {value.group(1)}" if value else "")


def _misspelt(what: str, name: str, known: set[str]) -> str:
    name = name.replace(".init_args", "").replace(".class_path", "")
    nearest = difflib.get_close_matches(name, sorted(known), n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else "see `zoo fit --help`"
    return f"no {what} {name!r}: {hint}"


def _classes() -> set[str]:
    bases = (AgentModule, RolloutDataModule, Protocol, ContextManager, Callback)
    return {kind.__name__ for base in bases for kind in family(base)}


def _options() -> set[str]:
    """Every option of a run by its full name, those of all classes that may stand in a place together."""
    names = {"config", "ckpt_path", "seed_everything"}
    for section, base in _SECTIONS.items():
        for kind in family(base):
            names |= {f"{section}.{name}" for name in inspect.signature(kind).parameters if name != "kwargs"}
    return names


def family(base: type) -> set[type]:
    """A class and all that are derived from it."""
    derived: list[type] = base.__subclasses__()
    return {base}.union(*(family(kind) for kind in derived))
