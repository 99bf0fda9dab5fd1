"""Verified weights: fp16 safetensors with a card, loaded strictly or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor, nn

from zoo.cards import (
    CARD_FILE,
    FORMAT,
    WEIGHTS_FILE,
    Card,
    CardError,
    WeightsError,
    find_card,
    locate_card,
    read_card,
    refuse_pickle,
    shorten,
    weights_folders,
    weights_path,
)

README_MARK = "<!-- Written from card.json. Remove this line and your edits are kept. -->"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_HEADER_LIMIT = 100_000_000  # the largest header that safetensors accepts
_PICKLE_MAGIC = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
_ZIP_MAGIC = b"PK\x03\x04"  # torch.save has written zipped pickles since 1.6


class MissingFileError(WeightsError):
    """A card without its weights."""


class NotSafetensorsError(WeightsError):
    """A file that is no safetensors file."""


class SizeMismatchError(WeightsError):
    """A file that is shorter or longer than its card says."""


class HashMismatchError(WeightsError):
    """A file whose sha256 is not the card's."""


class MissingKeyError(WeightsError):
    """The checkpoint lacks tensors that the module has."""


class ExtraKeyError(WeightsError):
    """The checkpoint has tensors that the module does not have."""


class ShapeMismatchError(WeightsError):
    """Tensors of the checkpoint and of the module differ in shape or kind."""


class TiedWeightsError(WeightsError):
    """Checkpoint and module disagree on which tensors are one."""


class WrongClassError(WeightsError):
    """A checkpoint made by another class."""


class UnstorableError(WeightsError):
    """A value that cannot be stored as fp16."""


def load_tensors(source: str | Path) -> tuple[Card, dict[str, Tensor]]:
    """Read and verify a checkpoint.

    Args:
        source: a zoo name, or a folder written by :func:`save`.

    Returns:
        The card and the tensors on the CPU, floating ones in fp32. Names that the card calls tied share one tensor.

    Raises:
        WeightsError: its subclass says what is wrong: no such name, malformed card, no file, a pickle, not safetensors,
            another size, another sha256.
    """
    card_path = locate_card(source)
    card = read_card(source)
    path = weights_path(card_path)
    _verify(path, card)
    try:
        stored = load_file(path)
    except SafetensorError as error:
        raise NotSafetensorsError(f"{path}: not a safetensors file ({error}): save the checkpoint again") from error
    tensors = {key: value.float() if value.is_floating_point() else value for key, value in stored.items()}
    for alias, kept in card.tied.items():
        if alias in stored or kept not in stored:
            raise CardError(
                f"{card_path}: tied says {alias} is {kept}, but the file disagrees: save the checkpoint again"
            )
        tensors[alias] = tensors[kept]
    return card, tensors


def load_strict(module: nn.Module, tensors: Mapping[str, Tensor], source: str | Path) -> None:
    """Copy tensors into a module if, and only if, they fit exactly. Otherwise the module is left as it was.

    Args:
        module: where to; its dtype and device stay.
        tensors: as :func:`load_tensors` gives them.
        source: where they come from, for the message.

    Raises:
        MissingKeyError, ExtraKeyError, ShapeMismatchError, TiedWeightsError: what does not fit.
    """
    state = module.state_dict()
    missing, extra = state.keys() - tensors.keys(), tensors.keys() - state.keys()
    unknown = f"has {len(extra)} tensors that {type(module).__name__} does not know: {shorten(extra)}"
    fix = "build the module that the card describes"
    if missing:
        lacking = f"lacks {len(missing)} tensors of {type(module).__name__}: {shorten(missing)}"
        raise MissingKeyError(f"{source}: {lacking}{f'; it {unknown}' if extra else ''}: {fix}")
    if extra:
        raise ExtraKeyError(f"{source}: {unknown}: {fix}")
    wrong = {key: (_kind(tensors[key]), _kind(value)) for key, value in state.items()}
    clashes = [f"{key} is {given}, not {wanted}" for key, (given, wanted) in wrong.items() if given != wanted]
    if clashes:
        raise ShapeMismatchError(f"{source}: does not fit {type(module).__name__}: {shorten(clashes)}: {fix}")
    ours, theirs = _tied(state), _tied({key: tensors[key] for key in state})
    split = [alias for alias, kept in ours.items() if not torch.equal(tensors[alias], tensors[kept])]
    untied = [alias for alias, kept in theirs.items() if ours.get(alias) != kept]
    if split or untied:
        problem = f"{shorten(split or untied)} {'is' if split else 'is not'} tied in {type(module).__name__}"
        raise TiedWeightsError(f"{source}: {problem}, unlike in the checkpoint: set tie_word_embeddings as in its card")
    module.load_state_dict(dict(tensors), strict=True)


def require_class(card: Card, name: str) -> None:
    """Raise ``WrongClassError`` unless the card was made by the class of that name."""
    if card.class_name != name:
        raise WrongClassError(
            f"{card.name} is a checkpoint of {card.class_name}, not of {name}: load it with "
            f"{card.class_name}.from_pretrained, or start from its weights with {name}(weights=...)"
        )


def save(folder: str | Path, tensors: Mapping[str, Tensor], fields: Mapping[str, Any]) -> Card:
    """Write a checkpoint: fp16 safetensors and a card. Equal input gives equal bytes.

    Each file appears whole or not at all; a crash between the two leaves a pair that loading refuses.

    Args:
        folder: made if absent. In a weights folder the files are called after the checkpoint's name, elsewhere
            ``model.safetensors`` and ``card.json``.
        tensors: what ``module.state_dict()`` gives; tensors that are one and the same are stored once.
        fields: of the card, by their json keys, without format, parameters, sha256, bytes and tied.

    Raises:
        UnstorableError: not a tensor, or values that fp16 cannot hold.
        CardError: fields that a card must not have.
    """
    folder = Path(folder).expanduser()
    tied = _tied(tensors)
    stored = {key: _half(key, value) for key, value in tensors.items() if key not in tied}
    data = serialize(stored)
    facts = {
        "format": FORMAT,
        "parameters": sum(value.numel() for value in stored.values() if value.is_floating_point()),
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "tied": tied,
    }
    if given := facts.keys() & fields.keys():
        raise CardError(f"{folder}: {shorten(given)} is filled in by save: leave it out")
    card = Card.from_dict({**fields, **facts})
    folder.mkdir(parents=True, exist_ok=True)
    card_path = folder / (f"{card.name}.json" if folder.resolve() in weights_folders() else CARD_FILE)
    _write(weights_path(card_path), data)
    _write(card_path, card.to_json().encode())
    return card


def resolve(source: str | Path) -> str:
    """What to load from: a zoo name or a folder stays as it is, a hub id (``owner/name``) becomes its local copy."""
    is_hub_id = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", str(source)) and not Path(source).exists()
    return str(download(str(source)) if find_card(source) is None and is_hub_id else source)


def download(repo_id: str, **options: Any) -> Path:
    """Fetch a zoo checkpoint from the Hugging Face hub: its card, its tokenizer and its safetensors file.

    Args:
        repo_id: ``owner/name``.
        options: of ``huggingface_hub.snapshot_download`` (revision, token, cache_dir ...).

    Returns:
        The local folder, for :func:`load_tensors`, which verifies it.

    Raises:
        UnknownCheckpointError: the repository holds no card.
    """
    from huggingface_hub import snapshot_download

    folder = Path(snapshot_download(repo_id, allow_patterns=[CARD_FILE, WEIGHTS_FILE, *TOKENIZER_FILES], **options))
    read_card(folder)
    return folder


def push_to_hub(
    folder: str | Path, repo_id: str, private: bool = False, token: str | None = None, **options: Any
) -> str:
    """Verify a checkpoint and publish it, with a README.md written from its card, on the Hugging Face hub.

    Args:
        folder: written by :func:`save`.
        repo_id: ``owner/name``; made if absent.
        private: whether a new repository is private.
        token: of the hub, by default the one you are logged in with.
        options: of ``huggingface_hub.upload_folder`` (commit_message, revision, create_pr ...).

    Returns:
        The repository's address.

    Raises:
        WeightsError: the checkpoint fails verification.
    """
    from huggingface_hub import create_repo, upload_folder

    folder = Path(folder).expanduser()
    if locate_card(folder) != folder / CARD_FILE:
        raise CardError(f"{folder}: push a folder written by save_pretrained, not a checkpoint of a weights folder")
    card, _ = load_tensors(folder)
    readme = folder / "README.md"
    if not readme.exists() or README_MARK in readme.read_text(encoding="utf-8"):
        _write(readme, model_card(card).encode())
    url = create_repo(repo_id, private=private, token=token, exist_ok=True)
    files = [CARD_FILE, WEIGHTS_FILE, *TOKENIZER_FILES, readme.name]
    upload_folder(repo_id=repo_id, folder_path=folder, allow_patterns=files, token=token, **options)
    return str(url)


def model_card(card: Card) -> str:
    """README.md of a checkpoint on the hub: YAML front matter, what it is, how to load it."""
    from huggingface_hub import ModelCardData

    tags = ["agentic-zoo", "reinforcement-learning", "agents", card.class_name]
    front = ModelCardData(license=card.licence.lower(), library_name="agentic-zoo", tags=tags).to_yaml()
    facts = {
        "Class": f"`{card.class_name}`",
        "Task": card.task,
        "Parameters": f"{card.parameters:,}",
        "Source": card.source,
    }
    if metric := card.metric:
        facts["Measured"] = (
            f"{metric['name']} {metric['value']} [{metric['low']}, {metric['high']}] "
            f"over {metric['episodes']} episodes, by `{metric['command']}`"
        )
    table = "\n".join(f"- {key}: {value}" for key, value in facts.items())
    usage = f"from zoo import {card.class_name}\n\nmodule = {card.class_name}.from_pretrained(folder_or_hub_id)"
    verified = f"Loading verifies the sha256 of the weights, `{card.sha256}`."
    code = f"```python\n{usage}\n```"
    return (
        f"---\n{front}\n---\n"
        + "\n\n".join([README_MARK, f"# {card.name}", card.summary, table, code, verified])
        + "\n"
    )


def _verify(path: Path, card: Card) -> None:
    """From the most telling check to the most thorough one."""
    if not path.is_file():
        raise MissingFileError(
            f"{path}: the card is there, its weights are not: put the file back or download it again"
        )
    with path.open("rb") as file:
        head = file.read(9)
        # A safetensors file starts with its header's length, which may well be 0x0280, the magic number of a pickle.
        if head and (int.from_bytes(head[:8], "little") > _HEADER_LIMIT or head[8:] != b"{"):
            if head.startswith((*_PICKLE_MAGIC, _ZIP_MAGIC)):
                refuse_pickle(path)
            hint = "if it is a git-lfs pointer or a web page, download the file itself"
            raise NotSafetensorsError(f"{path}: not a safetensors file (it starts with {head!r}): {hint}")
        size = os.fstat(file.fileno()).st_size
        if size != card.bytes:
            what = "cut short" if size < card.bytes else "too long"
            raise SizeMismatchError(f"{path}: {what}, {size} bytes where the card says {card.bytes}: download it again")
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != card.sha256:
        raise HashMismatchError(
            f"{path}: sha256 is {digest[:12]}..., the card says {card.sha256[:12]}...: "
            "the file is damaged or of another version, download or save both files again"
        )


def _kind(tensor: Tensor) -> str:
    kind = "float" if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {'x'.join(map(str, tensor.shape)) or 'scalar'}"


def _tied(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Names of tensors that are an earlier one seen again, ``{name: earlier name}``."""
    first: dict[Any, str] = {}
    tied = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor.layout == torch.strided and tensor.data_ptr():
            view = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if first.setdefault(view, name) != name:
                tied[name] = first[view]
    return tied


def _half(name: str, value: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        raise UnstorableError(f"{name} is a {type(value).__name__}, not a tensor: leave it out of the state dict")
    if not value.is_floating_point():
        return value.detach().cpu().contiguous()
    half = value.detach().to("cpu", torch.float16).contiguous()
    if not half.isfinite().all():
        raise UnstorableError(
            f"{name} holds NaN, infinity or values beyond 65504, the limit of fp16: has training diverged?"
        )
    return half


def _write(path: Path, data: bytes) -> None:
    """Write a file that others see whole or not at all."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
