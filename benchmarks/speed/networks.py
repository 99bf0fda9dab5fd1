"""The networks that speed is measured with; what they say does not matter, so they are untrained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zoo.policy import CausalPolicy, load_policy, word_policy

_COMMON = {"model_type": "qwen3", "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 4096}
SHAPES: dict[str, dict[str, Any]] = {
    "1M": {"hidden_size": 128, "head_dim": 32, "intermediate_size": 384, "num_hidden_layers": 4},
    "5M": {"hidden_size": 256, "head_dim": 64, "intermediate_size": 768, "num_hidden_layers": 4},
}
SHAPES["135M"] = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
}  # SmolLM2
SHAPES["135M"] |= {"num_attention_heads": 9, "num_key_value_heads": 3}
WORDS = {"1M": 1024, "5M": 4096, "135M": 49152}


def network(name: str, vocabulary: int | None = None) -> CausalPolicy:
    """A policy by its size, ``1M``, ``5M`` or ``135M``, always the same; or any weights that the zoo can load."""
    if name not in SHAPES:
        return load_policy(name)
    torch.manual_seed(0)
    words = [f"w{index}" for index in range((vocabulary or WORDS[name]) - 3)]
    return word_policy({**_COMMON, **SHAPES[name], "tie_word_embeddings": True}, words)


def body(policy: CausalPolicy) -> int:
    """Parameters that every token is multiplied with: all matrices but embedding and head."""
    outside = {id(policy.model.get_input_embeddings().weight), id(policy.model.get_output_embeddings().weight)}
    return sum(one.numel() for one in policy.parameters() if one.dim() == 2 and id(one) not in outside)


def passes(policy: CausalPolicy, lengths: Sequence[int], scored: int, beginning: int = 0) -> float:
    """FLOPs of a forward pass over rows, each token attending to those before it.

    Args:
        policy: gives the shapes.
        lengths: of the rows.
        scored: tokens that go through the head.
        beginning: tokens of each row that were computed before.
    """
    config = policy.model.config
    width = config.num_hidden_layers * config.num_attention_heads * config.head_dim
    attention = 2.0 * width * sum(length**2 - beginning**2 for length in lengths)  # two products over half the row
    fresh = sum(lengths) - beginning * len(lengths)
    return 2.0 * (body(policy) * fresh + config.vocab_size * config.hidden_size * scored) + attention
