"""Causal language models as policies: where they come from and how their log-probabilities are read."""

from zoo.policy.allocator import keep_freed_memory
from zoo.policy.causal import CausalPolicy
from zoo.policy.loading import load_policy, word_policy

__all__ = ["CausalPolicy", "load_policy", "word_policy"]

keep_freed_memory()
