"""A Llama-like network's next logits, without the Python that its modules wrap around the arithmetic.

Small networks spend half of a decoding step there. What is computed is what the model would compute, from the same weights and the
same cache; models of other families, with other than plain linear layers (LoRA, quantisation), or with hooks (sharding, steering)
have to be called as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

_FAMILIES = {"llama", "mistral", "qwen2", "qwen3"}


def feeds(model: nn.Module) -> bool:
    """Whether :func:`feed` computes what this model does."""
    if not isinstance(model, PreTrainedModel) or not type(model).__module__.startswith("transformers."):
        return False  # a subclass may have a forward of its own
    if model.config.model_type not in _FAMILIES:
        return False
    if {"full_attention"} != set(getattr(model.config, "layer_types", None) or ["full_attention"]):
        return False
    if model.config.model_type == "mistral" and model.config.sliding_window:
        return False
    modules = dict(model.named_modules())
    if any(module._forward_hooks or module._forward_pre_hooks for module in modules.values()):
        return False
    return all(type(module) is nn.Linear for name, module in modules.items() if name.endswith(("_proj", "lm_head")))


def feed(
    model: PreTrainedModel, ids: Tensor, positions: Tensor, real: Tensor, seen: Tensor, cache: DynamicCache
) -> Tensor:
    """Feed tokens to every row.

    Args:
        model: one that :func:`feeds`.
        ids: ``[rows, width]`` the tokens.
        positions: ``[rows, width]`` their positions.
        real: ``[rows, width]`` false for padding, which stands on the left.
        seen: ``[rows, cells]`` true for the cells of the cache that a row attends to, those of ``ids`` included.
        cache: grows by ``width`` cells.

    Returns:
        ``[rows, vocabulary]`` logits of the tokens that follow the last ones.
    """
    base = model.model
    states = base.embed_tokens(ids)
    cosine, sine = base.rotary_emb(states, positions)
    first, second = sine.chunk(2, -1)
    rotation = cosine[:, None], torch.cat([-first, second], -1)[:, None]
    bias = _bias(real, seen, states)
    for layer, slot in zip(base.layers, cache.layers, strict=True):
        attention, mlp = layer.self_attn, layer.mlp
        attended = _attend(attention, _norm(layer.input_layernorm, states), rotation, bias, slot)
        states = _linear(attention.o_proj, attended).add_(states)
        inner = _norm(layer.post_attention_layernorm, states)
        inner = mlp.act_fn(_linear(mlp.gate_proj, inner)).mul_(_linear(mlp.up_proj, inner))
        states = _linear(mlp.down_proj, inner).add_(states)
    return _linear(model.lm_head, _norm(base.norm, states[:, -1]))


def _bias(real: Tensor, seen: Tensor, states: Tensor) -> Tensor | None:
    """What is added to the scores of attention, ``[rows, 1, width, cells]``; ``None`` if each token sees all before it."""
    width, cells = real.shape[1], seen.shape[1]
    if width == cells and bool(real.all()):
        return None
    hidden = ~seen[:, None, None]
    if width > 1:
        later = torch.ones(width, cells, dtype=torch.bool, device=seen.device).triu_(cells - width + 1)
        # Padding sees all: with nothing to see it would be NaN, and so would what nobody sees, times 0.
        hidden = (hidden | later) & real[:, None, :, None]
    return states.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)


def _attend(
    attention: Any, states: Tensor, rotation: tuple[Tensor, Tensor], bias: Tensor | None, slot: DynamicLayer
) -> Tensor:
    heads = *states.shape[:2], -1, attention.head_dim
    query, key = _linear(attention.q_proj, states).view(heads), _linear(attention.k_proj, states).view(heads)
    if hasattr(attention, "q_norm"):
        query, key = _norm(attention.q_norm, query), _norm(attention.k_norm, key)
    value = _linear(attention.v_proj, states).view(heads)
    query = _rotate(query.transpose(1, 2), rotation)
    keys, values = slot.update(_rotate(key.transpose(1, 2), rotation), value.transpose(1, 2))
    attended = F.scaled_dot_product_attention(
        query,
        keys,
        values,
        bias,
        is_causal=bias is None,
        scale=attention.scaling,
        enable_gqa=query.shape[1] != keys.shape[1],
    )
    return attended.transpose(1, 2).flatten(2)


def _rotate(states: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = rotation
    return torch.addcmul(states * cosine, states.roll(states.shape[-1] // 2, -1), sine)


def _linear(module: nn.Linear, states: Tensor) -> Tensor:
    return F.linear(states, module.weight, module.bias)


def _norm(module: Any, states: Tensor) -> Tensor:
    return F.rms_norm(states, states.shape[-1:], module.weight, module.variance_epsilon)
