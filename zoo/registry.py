"""Classes by name, and checkpoints made into modules. Importing this imports neither torch nor Lightning."""

from __future__ import annotations

import difflib
import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, overload

from zoo.cards import list_names, read_card

BUILT_IN = {
    "ACTCritic": "zoo.act.module",
    "AgentModule": "zoo.agent",
    "ACTGuidePolicy": "zoo.actguide.module",
    "ECHOAgent": "zoo.echo.module",
    "ImitationPolicy": "zoo.imitation.module",
    "PreferencePolicy": "zoo.imitation.preferences",
    "ReSkillCoEvolver": "zoo.reskill.module",
}
"""The zoo's own classes and the modules that register them, imported when first asked for."""

_classes: dict[str, type] = {}
_Class = TypeVar("_Class", bound=type)


class UnknownClassError(ValueError):
    """No class is registered by this name."""


@overload
def register_model(cls: _Class, *, name: str | None = None) -> _Class: ...
@overload
def register_model(cls: None = None, *, name: str | None = None) -> Callable[[_Class], _Class]: ...
def register_model(cls: Any = None, *, name: str | None = None) -> Any:
    """Class decorator: checkpoints whose card names this class can be made with :func:`create_model`.

    Args:
        cls: the class, with a classmethod ``from_card(source, pretrained, **overrides)``, as every ``AgentModule`` has.
        name: in cards, by default the class's own name; for cards that were written before a class was renamed.

    Raises:
        TypeError: the class has no ``from_card``.

    Warns:
        UserWarning: another class had the name; it is replaced.
    """
    if cls is None:
        return lambda decorated: register_model(decorated, name=name)
    if not callable(getattr(cls, "from_card", None)):
        raise TypeError(f"{cls.__qualname__} has no classmethod from_card: derive it from zoo.agent.AgentModule")
    key = name or cls.__name__
    known = _classes.get(key)
    module = known.__module__ if known else BUILT_IN.get(key, cls.__module__)
    # The same class again, by a reload or a notebook cell run twice, replaces itself silently.
    if module != cls.__module__ or (known and known.__qualname__ != cls.__qualname__):
        warnings.warn(f"model {key} of {module} is replaced by the one of {cls.__module__}", stacklevel=2)
    _classes[key] = cls
    return cls


def model_class(name: str) -> type[Any]:
    """The registered class of this name; the zoo's own are imported when needed.

    Raises:
        UnknownClassError: no such class.
    """
    if name not in _classes and name in BUILT_IN:
        importlib.import_module(BUILT_IN[name])
    if name not in _classes:
        known = sorted(BUILT_IN.keys() | _classes.keys())
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"known: {', '.join(known)}"
        raise UnknownClassError(
            f"no class {name} is registered ({hint}): decorate it with @zoo.register_model and import its module"
        )
    return _classes[name]


def create_model(name: str | Path, pretrained: bool = False, **overrides: Any) -> Any:
    """Make the module a checkpoint's card describes.

    Args:
        name: a zoo name (see :func:`list_models`) or a folder made by ``save_pretrained``.
        pretrained: load the weights; otherwise the same network is randomly initialised.
        overrides: init arguments that replace the card's.

    Raises:
        WeightsError: no such checkpoint, or one that fails verification.
        UnknownClassError: its class is not registered.
    """
    return model_class(read_card(name).class_name).from_card(name, pretrained=pretrained, **overrides)


def list_models(pattern: str = "*") -> list[str]:
    """Sorted names of the checkpoints, shipped and in the folders of ``ZOO_WEIGHTS``, that match a shell pattern."""
    return list_names(pattern)
