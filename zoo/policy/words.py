"""Word-level tokenizers for the tiny policies: one word, one token."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

PAD, END, UNKNOWN = "<pad>", "<end>", "<unk>"


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer that knows exactly ``words`` besides padding, end of turn and unknown.

    Args:
        words: the vocabulary, in the order of the token ids that follow the three special ones.
    """
    vocabulary = list(dict.fromkeys([PAD, END, UNKNOWN, *words]))
    backend = Tokenizer(WordLevel({word: index for index, word in enumerate(vocabulary)}, unk_token=UNKNOWN))
    backend.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=PAD, eos_token=END, unk_token=UNKNOWN)


def tokenizer_words(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """The words of a tokenizer made by :func:`word_tokenizer`, in id order."""
    return [word for word, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
