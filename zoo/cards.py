"""Cards: the json beside a checkpoint that says what it is. Standard library only, so that ``zoo list`` is quick.

A checkpoint is two files: ``NAME.safetensors`` and ``NAME.json`` in a *weights folder* (``zoo/weights``, those in
the environment variable ``ZOO_WEIGHTS``), or ``model.safetensors`` and ``card.json`` in a folder of its own.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn, Self, get_origin, get_type_hints

FORMAT = 1
SHIPPED = Path(__file__).parent / "weights"
CARD_FILE, WEIGHTS_FILE = "card.json", "model.safetensors"
PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
METRIC_KEYS = ("name", "value", "low", "high", "episodes", "command")


class WeightsError(ValueError):
    """A checkpoint that cannot be used. Every kind has its own subclass; the message names the place and the fix."""


class UnknownCheckpointError(WeightsError):
    """No checkpoint has this name, or the folder has no card."""


class PickleRefusedError(WeightsError):
    """A pickle was given where safetensors are expected. Pickles can run code and are never loaded."""


class CardError(WeightsError):
    """A card that is malformed or contradicts itself."""


class CardVersionError(CardError):
    """A card of a format that this version does not know."""


@dataclass(frozen=True)
class Card:
    """What a checkpoint is; every field is needed. In json, ``class_name`` is called ``class``.

    Attributes:
        format: version of this layout.
        name: ``<family>.<task>``, for example ``actguide.clue_lock``.
        class_name: the registered class that made it.
        summary: one line on what it is.
        task: the task it was trained on.
        parameters: numbers in its floating-point tensors, tied ones counted once.
        sha256: of the safetensors file, 64 hex digits.
        bytes: size of the safetensors file.
        licence: SPDX id of the weights' licence.
        metric: ``name, value, low, high, episodes, command`` of a measurement; ``{}`` if there is none.
        architecture: a transformers config as plain data.
        tokenizer: for example ``{"kind": "words", "words": [...]}``.
        hparams: init arguments of the class.
        training: how it was trained.
        source: where it comes from.
        tied: names left out of the file because they share the memory of another: ``{left out: stored}``.

    Raises:
        CardError: a field of the wrong type, or one that is not plain data.
    """

    format: int
    name: str
    class_name: str
    summary: str
    task: str
    parameters: int
    sha256: str
    bytes: int
    licence: str
    metric: dict[str, Any]
    architecture: dict[str, Any]
    tokenizer: dict[str, Any]
    hparams: dict[str, Any]
    training: dict[str, Any]
    source: str
    tied: dict[str, Any]

    def __post_init__(self) -> None:
        for key, hint in get_type_hints(Card).items():
            value, kind = getattr(self, key), get_origin(hint) or hint
            if type(value) is not kind:
                raise CardError(f"{_json_key(key)} must be {kind.__name__}, not {value!r}")
            _require_plain(value, _json_key(key))
        if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", self.name):
            raise CardError(f"name {self.name!r} may hold letters, digits, '_', '-' and dots between them")
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise CardError(f"sha256 must be 64 hex digits in lower case, not {self.sha256!r}")
        if self.metric:
            self._check_metric()
        if not all(isinstance(name, str) for name in self.tied.values()):
            raise CardError("tied must map names of tensors to names of tensors")

    def _check_metric(self) -> None:
        _require_keys(self.metric, METRIC_KEYS, "metric")
        low, value, high = (self.metric[key] for key in ("low", "value", "high"))
        if not all(type(number) in (int, float) for number in (low, value, high)) or not low <= value <= high:
            raise CardError(f"metric needs numbers low <= value <= high, not {low!r}, {value!r}, {high!r}")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """A card from its json keys.

        Raises:
            CardVersionError: a format that is not known here.
            CardError: keys or values that a card must not have.
        """
        version = data.get("format")
        if version is not None and version != FORMAT:
            raise CardVersionError(
                f"format {version!r} is unknown, this zoo reads format {FORMAT}: upgrade agentic-zoo"
            )
        _require_keys(data, [_json_key(field.name) for field in fields(cls)], "a card")
        return cls(**{field.name: data[_json_key(field.name)] for field in fields(cls)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """A card from json text; raises ``CardError`` with line and column if it is not json."""
        try:
            data = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
        except json.JSONDecodeError as error:
            raise CardError(f"line {error.lineno}, column {error.colno}: not json ({error.msg})") from error
        if not isinstance(data, dict):
            raise CardError(f"a card is a json object, not a {type(data).__name__}")
        return cls.from_dict(data)

    def to_json(self) -> str:
        """The card as json text; equal cards give equal text."""
        data = {_json_key(key): value for key, value in asdict(self).items()}
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def weights_folders() -> list[Path]:
    """The shipped folder and those of ``ZOO_WEIGHTS``, each once.

    Raises:
        CardError: a folder in ``ZOO_WEIGHTS`` that does not exist.
    """
    folders = [SHIPPED]
    for entry in filter(None, os.environ.get("ZOO_WEIGHTS", "").split(os.pathsep)):
        folder = Path(entry).expanduser()
        if not folder.is_dir():
            raise CardError(f"ZOO_WEIGHTS lists {folder}, which is not a folder: make it, or take it off the list")
        folders.append(folder)
    return list(dict.fromkeys(folder.resolve() for folder in folders))


def list_names(pattern: str = "*") -> list[str]:
    """Sorted names of the checkpoints in all weights folders that match a shell pattern."""
    return sorted(name for name in _index() if fnmatchcase(name, pattern))


def list_cards(pattern: str = "*") -> list[Card]:
    """Cards of :func:`list_names`; a malformed one raises ``CardError`` rather than being left out."""
    return [read_card(name) for name in list_names(pattern)]


def find_card(source: str | Path) -> Path | None:
    """The card file of a zoo name or of a folder, ``None`` if there is none.

    A zoo name comes before a folder of the same name; ``./name`` means the folder.

    Raises:
        PickleRefusedError: the path of a pickle.
    """
    if str(source) in (index := _index()):
        return index[str(source)]
    path = Path(source).expanduser()
    if path.suffix in PICKLE_SUFFIXES and not path.is_dir():
        refuse_pickle(source)
    return path / CARD_FILE if (path / CARD_FILE).is_file() else None


def locate_card(source: str | Path) -> Path:
    """As :func:`find_card`, but raises ``UnknownCheckpointError`` where there is no card."""
    if (path := find_card(source)) is not None:
        return path
    if Path(source).is_dir():
        raise UnknownCheckpointError(f"{source}: the folder holds no {CARD_FILE}: give one written by save_pretrained")
    if Path(source).is_file():
        raise UnknownCheckpointError(f"{source}: a file: give the folder it lies in, or the checkpoint's zoo name")
    names = list_names()
    nearest = difflib.get_close_matches(str(source), names, n=3)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"`zoo list` shows all {len(names)}"
    folders = ", ".join(map(str, weights_folders()))
    raise UnknownCheckpointError(f"{source}: neither a folder nor a checkpoint in {folders}: {hint}")


def read_card(source: str | Path) -> Card:
    """Read the card of a zoo name or of a folder. The weights are not looked at.

    Raises:
        UnknownCheckpointError: there is no such checkpoint.
        CardError: the card is malformed.
    """
    path = locate_card(source)
    try:
        card = Card.from_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise CardError(f"{path}: not UTF-8 text (byte {error.start}): write the card again as UTF-8") from error
    except CardError as error:
        raise type(error)(f"{path}: {error}") from error
    if path.name != CARD_FILE and path.stem != card.name:
        raise CardError(f"{path}: the card's name is {card.name}: call it and its weights by that name, or correct it")
    return card


def weights_path(card_path: Path) -> Path:
    """Where the tensors belonging to a card file lie."""
    return card_path.with_name(WEIGHTS_FILE) if card_path.name == CARD_FILE else card_path.with_suffix(".safetensors")


def shorten(names: Iterable[str], limit: int = 5) -> str:
    """At most ``limit`` names for a message, with a count of the others."""
    listed = sorted(names)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more


def refuse_pickle(path: str | Path) -> NoReturn:
    """Raise ``PickleRefusedError`` with what to do instead."""
    raise PickleRefusedError(
        f"{path}: a pickle, and pickles are never loaded because they can run code: "
        "save the model as safetensors with save_pretrained(folder) and give that folder"
    )


def _index() -> dict[str, Path]:
    index: dict[str, Path] = {}
    for folder in weights_folders():
        for path in sorted(folder.glob("[!.]*.json")):
            if path.stem in index:
                raise CardError(f"{path.stem} is in {index[path.stem].parent} and in {folder}: rename or remove one")
            index[path.stem] = path
    return index


def _json_key(field: str) -> str:
    return "class" if field == "class_name" else field


def _require_keys(data: Mapping[str, Any], keys: Sequence[str], what: str) -> None:
    unknown, missing = data.keys() - set(keys), set(keys) - data.keys()
    if unknown:
        raise CardError(f"{what} has no key {shorten(unknown)}: remove it (known: {', '.join(keys)})")
    if missing:
        raise CardError(f"{what} needs the key {shorten(missing)}: add it")


def _require_plain(value: Any, where: str) -> None:
    """Refuse what json would change on the way or cannot hold."""
    if type(value) is dict:
        for key, inner in value.items():
            if type(key) is not str:
                raise CardError(f"{where} has the key {key!r}: keys must be strings")
            _require_plain(inner, f"{where}.{key}")
    elif type(value) is list:
        for index, inner in enumerate(value):
            _require_plain(inner, f"{where}[{index}]")
    elif not (value is None or type(value) in (str, int, bool) or (type(value) is float and isfinite(value))):
        raise CardError(f"{where} holds {value!r}: a card holds str, int, finite float, bool, list and dict only")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in pairs:
        if key in data:
            raise CardError(f"the key {key!r} appears twice: remove one")
        data[key] = value
    return data


def _refuse_constant(constant: str) -> NoReturn:
    raise CardError(f"{constant} is not json: a card holds finite numbers only")
