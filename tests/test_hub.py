"""Every way a checkpoint can be wrong has its own error, and a right one comes back as it was."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor, nn

from zoo import cards, hub

METRIC = {"name": "test/success", "value": 0.97, "low": 0.95, "high": 0.98, "episodes": 1000, "command": "zoo test"}
FIELDS: dict[str, Any] = {
    "name": "base.toy",
    "class": "Toy",
    "summary": "A toy.",
    "task": "Toy task",
    "licence": "Apache-2.0",
    "metric": METRIC,
    "architecture": {"model_type": "llama", "hidden_size": 4},
    "tokenizer": {"kind": "words", "words": ["go", "größer"]},
    "hparams": {"lr": 0.1, "lora": None},
    "training": {"seeds": [1, 2]},
    "source": "made in a test",
}


class Toy(nn.Module):
    """4 x 3 + 3 weights, and a counter that must stay an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("steps", torch.tensor(2**40 + 1))


class Tied(nn.Module):
    """An output layer that is the embedding, as in most small language models."""

    def __init__(self, tie: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        if tie:
            self.head.weight = self.embed.weight


@pytest.fixture(autouse=True)
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty weights folder instead of the shipped one."""
    folder = tmp_path / "weights"
    folder.mkdir()
    monkeypatch.setattr(cards, "SHIPPED", folder)
    monkeypatch.delenv("ZOO_WEIGHTS", raising=False)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound checkpoint in a folder of its own."""
    hub.save(tmp_path / "toy", Toy().state_dict(), FIELDS)
    return tmp_path / "toy"


def edit_card(path: Path, **changes: Any) -> None:
    data = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps({key: value for key, value in data.items() if value != "REMOVE"}), encoding="utf-8")


def reseal(folder: Path) -> None:
    """Make the card agree with whatever the weights file now is."""
    data = (folder / "model.safetensors").read_bytes()
    edit_card(folder / "card.json", bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


# -- a sound checkpoint ---------------------------------------------------------------------------------------------


def test_round_trip_is_the_module_rounded_to_fp16(folder: Path) -> None:
    torch.manual_seed(0)
    module, other = Toy(), Toy()
    card = hub.save(folder, module.state_dict(), FIELDS)
    read, tensors = hub.load_tensors(folder)
    hub.load_strict(other, tensors, folder)
    assert read == card == cards.read_card(folder)
    assert tensors["layer.weight"].dtype == torch.float32
    assert torch.equal(other.layer.weight, module.layer.weight.half().float())
    assert not torch.equal(other.layer.weight, module.layer.weight)
    assert other.state_dict()["steps"].item() == 2**40 + 1
    assert card.parameters == 15  # the integer buffer is not one
    assert {key: value for key, value in json.loads(card.to_json()).items() if key in FIELDS} == FIELDS


def test_file_holds_fp16_and_unchanged_integers(folder: Path) -> None:
    with safe_open(folder / "model.safetensors", "pt") as file:
        dtypes = {key: file.get_tensor(key).dtype for key in file.keys()}  # noqa: SIM118
    assert dtypes == {"layer.weight": torch.float16, "layer.bias": torch.float16, "steps": torch.int64}
    assert cards.read_card(folder).bytes == (folder / "model.safetensors").stat().st_size


def test_weights_folder_names_files_after_the_checkpoint(weights: Path) -> None:
    card = hub.save(weights, Toy().state_dict(), FIELDS)
    assert sorted(path.name for path in weights.iterdir()) == ["base.toy.json", "base.toy.safetensors"]
    assert hub.load_tensors("base.toy")[0] == card


def test_tied_weights_are_stored_once_and_come_back_tied(tmp_path: Path) -> None:
    module, other = Tied(), Tied()
    card = hub.save(tmp_path / "tied", module.state_dict(), FIELDS)
    assert card.tied == {"head.weight": "embed.weight"} and card.parameters == 20
    with safe_open(tmp_path / "tied" / "model.safetensors", "pt") as file:
        assert list(file.keys()) == ["embed.weight"]
    _, tensors = hub.load_tensors(tmp_path / "tied")
    hub.load_strict(other, tensors, "tied")
    assert other.head.weight is other.embed.weight
    assert torch.equal(other.head.weight, module.head.weight.half().float())


def test_views_of_one_storage_are_stored_apart(tmp_path: Path) -> None:
    block = torch.arange(6.0).view(3, 2)
    views = {"top": block[:2], "bottom": block[1:], "turned": block.T, "block": block}
    card = hub.save(tmp_path / "views", views, FIELDS)
    assert card.tied == {}
    _, tensors = hub.load_tensors(tmp_path / "views")
    assert all(torch.equal(tensors[key], value) for key, value in views.items())


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    state = Toy().state_dict()
    for name, tensors in {"a": state, "b": dict(reversed(state.items()))}.items():
        hub.save(tmp_path / name, tensors, FIELDS)
    for file in ("model.safetensors", "card.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["card.json", "model.safetensors"]


def test_failed_write_leaves_the_old_file_and_no_rest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (folder / "model.safetensors").read_bytes()

    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        hub.save(folder, {key: value + 1 for key, value in Toy().state_dict().items()}, FIELDS)
    assert (folder / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["card.json", "model.safetensors"]


def test_header_that_looks_like_a_pickle_is_loaded(tmp_path: Path) -> None:
    """A header of 0x0280 to 0x0580 bytes starts with the magic number of a pickle."""
    seen = set()
    for length in range(400, 1500, 8):
        hub.save(tmp_path / "long", {"x" * length: torch.ones(1)}, FIELDS)
        seen.add((tmp_path / "long" / "model.safetensors").read_bytes()[:2])
        hub.load_tensors(tmp_path / "long")
    assert {b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"} <= seen


# -- the file -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    folder = tmp_path_factory.mktemp("sound")
    hub.save(folder, Toy().state_dict(), FIELDS)
    return folder, (folder / "model.safetensors").read_bytes()


@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_flipped_bit_is_refused(sound: tuple[Path, bytes], position: float, bit: int) -> None:
    folder, data = sound
    damaged = bytearray(data)
    damaged[int(position * len(data))] ^= 1 << bit
    (folder / "model.safetensors").write_bytes(damaged)
    with pytest.raises((hub.HashMismatchError, hub.NotSafetensorsError)):
        hub.load_tensors(folder)


def test_flipped_bit_in_a_weight_names_the_hash(folder: Path) -> None:
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(hub.HashMismatchError, match=r"model\.safetensors: sha256 is \w{12}\.\.\., .* download"):
        hub.load_tensors(folder)


@pytest.mark.parametrize("length", [0, 5, 9, 100, -1])
def test_truncated_file(folder: Path, length: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(hub.SizeMismatchError if length not in (5,) else hub.NotSafetensorsError, match="download"):
        hub.load_tensors(folder)


def test_appended_bytes(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(hub.SizeMismatchError, match=r"too long, \d+ bytes where the card says \d+"):
        hub.load_tensors(folder)


@pytest.mark.parametrize("content", [b"version https://git-lfs.github.com/spec/v1\n", b"<!DOCTYPE html><html></html>"])
def test_other_file(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(hub.NotSafetensorsError, match="git-lfs pointer or a web page, download the file itself"):
        hub.load_tensors(folder)


def test_unreadable_header_under_a_right_hash(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((8).to_bytes(8, "little") + b"{ broken")
    reseal(folder)
    with pytest.raises(hub.NotSafetensorsError, match="save the checkpoint again"):
        hub.load_tensors(folder)


def test_missing_weights_file(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(hub.MissingFileError, match="the card is there, its weights are not: put the file back"):
        hub.load_tensors(folder)


class Bomb:
    """Unpickling it creates the file ``exploded``."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (Path("exploded"),)


def bombs() -> dict[str, Callable[[Path], Any]]:
    protocols = {f"protocol {p}": lambda path, p=p: path.write_bytes(pickle.dumps(Bomb(), p)) for p in range(2, 6)}
    legacy = {"legacy": lambda path: torch.save(Bomb(), path, _use_new_zipfile_serialization=False)}
    return protocols | legacy | {"zip": lambda path: torch.save(Bomb(), path)}


@pytest.mark.parametrize("kind", bombs())
def test_renamed_pickle_is_never_loaded(folder: Path, kind: str) -> None:
    bombs()[kind](folder / "model.safetensors")
    reseal(folder)  # even if the card vouches for it
    with pytest.raises(cards.PickleRefusedError, match=r"model\.safetensors: a pickle, and pickles are never loaded"):
        hub.load_tensors(folder)
    assert not Path("exploded").exists()


@pytest.mark.parametrize("suffix", cards.PICKLE_SUFFIXES)
def test_pickle_by_its_name(tmp_path: Path, suffix: str) -> None:
    bombs()["zip"](path := tmp_path / f"model{suffix}")
    for function in (hub.load_tensors, cards.read_card, cards.find_card):
        with pytest.raises(cards.PickleRefusedError, match="never loaded because they can run code: save the model"):
            function(path)
    assert not Path("exploded").exists()


# -- the module -----------------------------------------------------------------------------------------------------


def test_missing_and_extra_keys_list_five(folder: Path) -> None:
    _, tensors = hub.load_tensors(folder)
    with pytest.raises(hub.MissingKeyError, match=r"^toy: lacks 1 tensors of Toy: steps: build"):
        hub.load_strict(Toy(), {key: value for key, value in tensors.items() if key != "steps"}, "toy")
    extra = {f"extra{index}": torch.zeros(1) for index in range(7)}
    listed = r"extra0, extra1, extra2, extra3, extra4 and 2 more: build the module that the card describes$"
    with pytest.raises(hub.ExtraKeyError, match=rf"^toy: has 7 tensors that Toy does not know: {listed}"):
        hub.load_strict(Toy(), tensors | extra, "toy")
    renamed = {"steps2" if key == "steps" else key: value for key, value in tensors.items()}
    with pytest.raises(hub.MissingKeyError, match=r"Toy: steps; it has 1 tensors that Toy does not know: steps2"):
        hub.load_strict(Toy(), renamed, "toy")


def test_refused_tensors_leave_the_module_alone(folder: Path) -> None:
    module, (_, tensors) = Toy(), hub.load_tensors(folder)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with pytest.raises(hub.ShapeMismatchError, match=r"layer\.bias is float 4, not float 3"):
        hub.load_strict(module, tensors | {"layer.bias": torch.zeros(4)}, "toy")
    with pytest.raises(hub.ShapeMismatchError, match="steps is float scalar, not int64 scalar"):
        hub.load_strict(module, tensors | {"steps": torch.tensor(1.0)}, "toy")
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def test_shape_that_would_broadcast_is_refused(folder: Path) -> None:
    _, tensors = hub.load_tensors(folder)
    with pytest.raises(hub.ShapeMismatchError, match=r"layer\.weight is float 1x4, not float 3x4"):
        hub.load_strict(Toy(), tensors | {"layer.weight": torch.zeros(1, 4)}, "toy")


def test_ties_must_agree(tmp_path: Path) -> None:
    hub.save(tmp_path / "tied", Tied().state_dict(), FIELDS)
    hub.save(tmp_path / "apart", Tied(tie=False).state_dict(), FIELDS)
    with pytest.raises(hub.TiedWeightsError, match=r"head\.weight is not tied in Tied, unlike in the checkpoint"):
        hub.load_strict(Tied(tie=False), hub.load_tensors(tmp_path / "tied")[1], "tied")
    with pytest.raises(hub.TiedWeightsError, match=r"head\.weight is tied in Tied, unlike in the checkpoint"):
        hub.load_strict(Tied(), hub.load_tensors(tmp_path / "apart")[1], "apart")


@pytest.mark.parametrize("tied", [{"layer.bias": "layer.weight"}, {"head": "absent"}])
def test_card_whose_ties_contradict_the_file(folder: Path, tied: dict[str, str]) -> None:
    edit_card(folder / "card.json", tied=tied)
    with pytest.raises(cards.CardError, match=r"card\.json: tied says .* but the file disagrees"):
        hub.load_tensors(folder)


def test_wrong_class(folder: Path) -> None:
    card = cards.read_card(folder)
    hub.require_class(card, "Toy")
    with pytest.raises(hub.WrongClassError, match=r"base\.toy is a checkpoint of Toy, not of Other: load it with Toy"):
        hub.require_class(card, "Other")


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 65520.0])
def test_values_that_fp16_cannot_hold_are_not_saved(tmp_path: Path, value: float) -> None:
    with pytest.raises(hub.UnstorableError, match="layer holds NaN, infinity or values beyond 65504"):
        hub.save(tmp_path / "bad", {"layer": torch.tensor([0.0, value])}, FIELDS)
    assert not (tmp_path / "bad").exists()


def test_extra_state_is_not_saved(tmp_path: Path) -> None:
    state: dict[str, Any] = {"_extra_state": {"a": 1}}
    with pytest.raises(hub.UnstorableError, match="_extra_state is a dict, not a tensor: leave it out"):
        hub.save(tmp_path / "bad", state, FIELDS)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"betas": (0.9, 0.99)}, r"hparams\.betas holds \(0\.9, 0\.99\): a card holds str"),
        ({"a": [{"b": Path("x")}]}, r"hparams\.a\[0\]\.b holds "),
        ({"labels": {0: "no"}}, r"hparams\.labels has the key 0: keys must be strings"),
        ({"limit": float("inf")}, r"hparams\.limit holds inf"),
        ({"scale": torch.ones(())}, r"hparams\.scale holds tensor"),
    ],
)
def test_fields_that_json_would_change_are_refused(tmp_path: Path, value: dict[str, Any], message: str) -> None:
    with pytest.raises(cards.CardError, match=message):
        hub.save(tmp_path / "bad", Toy().state_dict(), FIELDS | {"hparams": value})
    assert not (tmp_path / "bad").exists()


def test_fields_that_save_fills_in_are_refused(tmp_path: Path) -> None:
    with pytest.raises(cards.CardError, match="parameters, sha256 is filled in by save: leave it out"):
        hub.save(tmp_path / "bad", {}, FIELDS | {"sha256": "0" * 64, "parameters": 1})


# -- the hub --------------------------------------------------------------------------------------------------------


CHECKPOINT_FILES = {"card.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"}


def transferred(patterns: list[str]) -> set[str]:
    """Which of these files the patterns let through."""
    others = {"pytorch_model.bin", "last.ckpt", "run.py", "notes.txt", ".env", "other.safetensors", "README.md"}
    return {name for name in CHECKPOINT_FILES | others if any(fnmatch(name, pattern) for pattern in patterns)}


def test_push_writes_a_readme_and_uploads_the_checkpoint_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create, upload = Mock(return_value="https://huggingface.co/me/toy"), Mock()
    monkeypatch.setattr(huggingface_hub, "create_repo", create)
    monkeypatch.setattr(huggingface_hub, "upload_folder", upload)
    assert hub.push_to_hub(folder, "me/toy", commit_message="first") == create.return_value
    create.assert_called_once_with("me/toy", private=False, token=None, exist_ok=True)
    sent = dict(upload.call_args.kwargs)
    assert transferred(sent.pop("allow_patterns")) == {"README.md", *CHECKPOINT_FILES}
    assert sent == {"repo_id": "me/toy", "folder_path": folder, "token": None, "commit_message": "first"}
    front = huggingface_hub.ModelCard.load(folder / "README.md").data.to_dict()
    assert (front["license"], front["library_name"]) == ("apache-2.0", "agentic-zoo")
    assert front["tags"] == ["agentic-zoo", "reinforcement-learning", "agents", "Toy"]
    assert "test/success 0.97 [0.95, 0.98] over 1000 episodes, by `zoo test`" in (folder / "README.md").read_text()


def test_push_renews_its_own_readme_and_keeps_yours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "create_repo", lambda *_, **__: "url")
    monkeypatch.setattr(huggingface_hub, "upload_folder", lambda **_: None)
    hub.push_to_hub(folder, "me/toy")
    hub.save(folder, Toy().state_dict(), FIELDS | {"summary": "Better."})
    hub.push_to_hub(folder, "me/toy")
    assert "Better." in (folder / "README.md").read_text()
    (folder / "README.md").write_text("Mine.")
    hub.push_to_hub(folder, "me/toy")
    assert (folder / "README.md").read_text() == "Mine."


def test_push_verifies_first(folder: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "create_repo", lambda *_, **__: pytest.fail("must not be reached"))
    hub.save(weights, Toy().state_dict(), FIELDS)
    with pytest.raises(cards.CardError, match="push a folder written by save_pretrained"):
        hub.push_to_hub("base.toy", "me/toy")
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(hub.SizeMismatchError):
        hub.push_to_hub(folder, "me/toy")


def test_hub_id_is_downloaded_and_names_are_not(folder: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = Mock(return_value=str(folder))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    hub.save(weights, Toy().state_dict(), FIELDS)
    assert hub.resolve("base.toy") == "base.toy"
    assert hub.resolve(folder) == str(folder)
    assert hub.resolve("typo") == "typo"
    fetch.assert_not_called()
    assert hub.resolve("me/toy") == str(folder)
    assert fetch.call_args.args == ("me/toy",)
    assert transferred(fetch.call_args.kwargs["allow_patterns"]) == CHECKPOINT_FILES


def test_hub_repository_without_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(cards.UnknownCheckpointError, match=r"holds no card\.json"):
        hub.download("me/other")


def test_every_error_is_a_weights_error() -> None:
    kinds = [value for module in (cards, hub) for name, value in vars(module).items() if name.endswith("Error")]
    own = [kind for kind in kinds if kind.__module__.startswith("zoo.")]
    assert len(own) > 12 and all(issubclass(kind, cards.WeightsError) and issubclass(kind, ValueError) for kind in own)


def test_tensors_is_a_state_dict() -> None:
    state: dict[str, Tensor] = Tied().state_dict()
    assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()  # what save relies on
