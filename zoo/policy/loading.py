"""Where a policy's weights come from: the zoo, a folder, a hub id, a GGUF file, or nowhere (random)."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from zoo import hub
from zoo.cards import Card, CardError, UnknownCheckpointError, find_card, list_names
from zoo.errors import ConfigError
from zoo.policy.causal import CausalPolicy
from zoo.policy.words import tokenizer_words, word_tokenizer

_GGUF_HELP = "use 'folder/file.gguf', or 'pkg:package/file.gguf' for a file inside an installed Python package"


def load_policy(weights: str, lora: dict[str, Any] | None = None) -> CausalPolicy:
    """Build a policy from pretrained weights.

    Args:
        weights: a zoo name (``base.clue_lock``), a folder written by ``save_pretrained`` of the zoo or of transformers,
            a Hugging Face id, or a GGUF file (``path/to/x.gguf``, ``pkg:package/x.gguf``).
        lora: arguments of ``peft.LoraConfig``; only the adapter is trained then.

    Raises:
        FileNotFoundError: a GGUF path or package that is not there.
        WeightsError: a zoo checkpoint that fails verification (see :mod:`zoo.hub`).
        UnknownCheckpointError: neither a zoo name nor something transformers can find.
    """
    if weights.endswith(".gguf"):
        policy = _from_gguf(_gguf_path(weights))
    elif find_card(weights) is not None:
        card, tensors = hub.load_tensors(weights)
        policy = policy_from_card(card, weights)
        hub.load_strict(policy.model, tensors, weights)
    else:
        policy = _from_transformers(weights)
    return with_lora(policy, lora)


def word_policy(architecture: dict[str, Any], words: Sequence[str]) -> CausalPolicy:
    """A randomly initialised network over a word vocabulary.

    Args:
        architecture: a transformers config as plain data; ``model_type`` says which.
        words: the vocabulary; its size overrides ``vocab_size``.

    Raises:
        ConfigError: an architecture that transformers does not know or cannot build.
    """
    tokenizer = word_tokenizer(words)
    settings = {**architecture, "vocab_size": len(tokenizer)}
    settings |= {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    return CausalPolicy(_random_model(settings), tokenizer)


def _random_model(architecture: dict[str, Any]) -> PreTrainedModel:
    settings = dict(architecture)
    model_type = settings.pop("model_type", None)
    if model_type not in CONFIG_MAPPING:
        nearest = difflib.get_close_matches(model_type or "", list(CONFIG_MAPPING), n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else "for example {model_type: llama, hidden_size: 128}"
        raise ConfigError(f"model.architecture needs a model_type that transformers knows, not {model_type!r}: {hint}")
    try:
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings), dtype=torch.float32)
    except (ValueError, StrictDataclassError) as error:
        raise ConfigError(f"model.architecture: {error}") from error


def policy_from_card(card: Card, source: str) -> CausalPolicy:
    """The network a zoo card describes, randomly initialised.

    Raises:
        CardError: a kind of tokenizer this version does not know.
    """
    kind = card.tokenizer.get("kind")
    if kind == "words":
        return word_policy(card.architecture, card.tokenizer["words"])
    if kind != "files":
        raise CardError(f"{card.name}: unknown tokenizer kind {kind!r}: upgrade agentic-zoo")
    return CausalPolicy(_random_model(card.architecture), AutoTokenizer.from_pretrained(source))


def tokenizer_card(policy: CausalPolicy) -> dict[str, Any]:
    """What a card says of the policy's tokenizer: its words, or that its files lie beside the card."""
    return {"kind": "words", "words": tokenizer_words(policy.tokenizer)} if policy.word_level else {"kind": "files"}


def with_lora(policy: CausalPolicy, lora: dict[str, Any] | None) -> CausalPolicy:
    """Freeze the policy and put a LoRA adapter on it (``None`` leaves it as it is).

    Raises:
        ConfigError: arguments that peft does not take, or modules that the network does not have.
    """
    if lora is None:
        return policy
    from peft import LoraConfig, get_peft_model

    try:
        policy.model = get_peft_model(policy.model, LoraConfig(task_type="CAUSAL_LM", **lora))
    except (TypeError, ValueError) as error:  # an argument that peft does not know, or no such modules in this network
        raise ConfigError(f"model.lora: {error}") from error
    return policy


def _from_transformers(weights: str) -> CausalPolicy:
    nearest = difflib.get_close_matches(weights, list_names(), n=1, cutoff=0.7)
    if nearest and "/" not in weights:  # plainly a misspelt zoo name: do not ask the hub
        raise UnknownCheckpointError(f"weights {weights!r} are no zoo checkpoint: did you mean {nearest[0]}?")
    try:
        model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32, use_safetensors=True)
        return CausalPolicy(model, AutoTokenizer.from_pretrained(weights))
    except OSError as error:
        reason = str(error).split("\n")[0]
        raise UnknownCheckpointError(
            f"weights {weights!r} are no zoo checkpoint (see `zoo list`), no folder, and no Hugging Face id: {reason}"
        ) from error


def packaged(name: str, hint: str = "name an installed Python package") -> Path:
    """The path a name stands for: ``pkg:package/inner`` is a file or folder inside an installed package, which is not run.

    Raises:
        FileNotFoundError: the package is not installed; ``hint`` says what to do.
    """
    if not name.startswith("pkg:"):
        return Path(name)
    package, _, inner = name.removeprefix("pkg:").partition("/")
    # Of a package that is absent, a part cannot be asked for.
    top = package and importlib.util.find_spec(package.split(".")[0])
    spec = importlib.util.find_spec(package) if top else None
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"{name}: the package {package!r} is not installed; {hint}")
    return Path(spec.submodule_search_locations[0]) / inner


def _gguf_path(weights: str) -> Path:
    path = packaged(weights, _GGUF_HELP)
    if not path.is_file():
        raise FileNotFoundError(f"{weights}: there is no file {path}; {_GGUF_HELP}")
    return path


def _from_gguf(path: Path) -> CausalPolicy:
    source: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    config = source.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    # A fresh model without the quantizer attached: the original refuses to be saved.
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(source.state_dict(), strict=True)
    return CausalPolicy(model, AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name))
