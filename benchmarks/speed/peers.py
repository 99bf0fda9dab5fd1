"""TRL as it would be used on a CPU, with the settings that make it compute what the zoo computes."""

from __future__ import annotations

import logging
import random
from typing import Any

from zoo.policy import CausalPolicy


def trl_trainer(policy: CausalPolicy, folder: str, **settings: Any) -> Any:
    """A ``trl.GRPOTrainer`` of the policy's network on prompts of 64 words, rewarded at random."""
    from datasets import Dataset, disable_progress_bars
    from trl import GRPOConfig, GRPOTrainer

    disable_progress_bars()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    draws, words = random.Random(0), [word for word in policy.tokenizer.get_vocab() if word.startswith("w")]
    prompts = [" ".join(draws.choices(words, k=64)) for _ in range(256)]
    given = {"per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 64, **settings}
    arguments = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        report_to="none",
        gradient_checkpointing=False,
        beta=0.0,
        loss_type="dapo",
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        max_steps=1_000_000,
        **given,
    )
    return GRPOTrainer(
        policy.model,
        reward_funcs=lambda completions, **_: [draws.random() for _ in completions],
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=policy.tokenizer,
    )
