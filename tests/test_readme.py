"""The README's method runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import small_data

README = Path(__file__).parent.parent / "README.md"


def test_the_readmes_method_trains(tmp_path: Path) -> None:
    import lightning.pytorch as pl

    code = next(
        block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "class" in block
    )
    scope: dict[str, Any] = {"__name__": "readme"}
    exec(code, scope)
    assert len(code.splitlines()) <= 40
    policy = scope["FrugalPolicy"](price=0.05, weights="base.clue_lock")
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(policy, datamodule=small_data(environment_args={"actions": 2, "steps": 1}, group_size=16))
    assert policy.hparams.price == 0.05
    assert float(trainer.callback_metrics["train/tokens_per_episode"]) > 1
    assert float(trainer.callback_metrics["train/reward"]) < float(trainer.callback_metrics["train/success"])
    with pytest.raises(ValueError, match=r"model\.price"):
        scope["FrugalPolicy"](price=2, weights="base.clue_lock")
