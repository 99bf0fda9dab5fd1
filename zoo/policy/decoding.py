"""The next token of every row of a Llama-like network, without the Python that its modules wrap around the arithmetic.

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


def decodes(model: nn.Module) -> bool:
    """Whether :func:`decode` computes what this model does."""
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


def decode(model: PreTrainedModel, ids: Tensor, positions: Tensor, seen: Tensor, cache: DynamicCache) -> Tensor:
    """Feed one token to every row.

    Args:
        model: one that :func:`decodes`.
        ids: ``[rows]`` the tokens.
        positions: ``[rows]`` their positions.
        seen: ``[rows, cells]`` true for the cells of the cache that a row attends to, the new one included.
        cache: grows by one cell.

    Returns:
        ``[rows, vocabulary]`` logits of the tokens that follow.
    """
    base = model.model
    states = base.embed_tokens(ids)
    cosine, sine = base.rotary_emb(states, positions[:, None])
    first, second = sine.chunk(2, -1)
    rotation = cosine, torch.cat([-first, second], -1)
    bias = states.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)[:, None, None]
    for layer, slot in zip(base.layers, cache.layers, strict=True):
        attention, mlp = layer.self_attn, layer.mlp
        attended = _attend(attention, _norm(layer.input_layernorm, states), rotation, bias, slot)
        states = _linear(attention.o_proj, attended).add_(states)
        inner = _norm(layer.post_attention_layernorm, states)
        inner = mlp.act_fn(_linear(mlp.gate_proj, inner)).mul_(_linear(mlp.up_proj, inner))
        states = _linear(mlp.down_proj, inner).add_(states)
    return _linear(model.lm_head, _norm(base.norm, states))


def _attend(
    attention: Any, states: Tensor, rotation: tuple[Tensor, Tensor], bias: Tensor, slot: DynamicLayer
) -> Tensor:
    heads = len(states), -1, attention.head_dim
    query, key = _linear(attention.q_proj, states).view(heads), _linear(attention.k_proj, states).view(heads)
    if hasattr(attention, "q_norm"):
        query, key = _norm(attention.q_norm, query), _norm(attention.k_norm, key)
    value = _linear(attention.v_proj, states).view(heads)
    keys, values = slot.update(_rotate(key, rotation)[:, :, None], value[:, :, None])
    grouped = query.shape[1] != keys.shape[1]
    attended = F.scaled_dot_product_attention(
        _rotate(query, rotation)[:, :, None], keys, values, bias, scale=attention.scaling, enable_gqa=grouped
    )
    return attended.flatten(1)


def _rotate(states: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = rotation
    return torch.addcmul(states * cosine, states.roll(states.shape[-1] // 2, -1), sine)


def _linear(module: nn.Linear, states: Tensor) -> Tensor:
    return F.linear(states, module.weight, module.bias)


def _norm(module: Any, states: Tensor) -> Tensor:
    return F.rms_norm(states, states.shape[-1:], module.weight, module.variance_epsilon)
