"""A small byte-level BPE tokenizer with a chat template, as instruction-tuned models bring one."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# As Qwen3's: of replies before the last question only what follows the reasoning is kept.
FORGETFUL = (
    "{% set ns = namespace(last=0) %}"
    "{% for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}{% set content = message.content %}"
    "{% if message.role == 'assistant' and loop.index0 < ns.last %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# As Llama 2's: nothing between reply and question, and a space before the end of a reply.
BRACKETS = (
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ '<<' + message.content + '>>' }}"
    "{% elif message.role == 'user' %}{{ '[INST] ' + message.content + ' [/INST]' }}"
    "{% else %}{{ message.content + ' ' + eos_token }}{% endif %}{% endfor %}"
)
_CORPUS = ["look around\n\ntake the coin", "go north\ngo south", "the lock is open\n", "<action>go north</action>"] * 4


def chat_tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """A tokenizer of about 300 tokens that merges spaces and line ends with what stands beside them."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        _CORPUS,
        trainers.BpeTrainer(vocab_size=310, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = template
    return tokenizer
