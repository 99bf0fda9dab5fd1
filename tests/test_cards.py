"""Cards are strict, names are found, lists are readable; all of it without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zoo import cards
from zoo.listing import format_card, format_list

METRIC = {"name": "test/success", "value": 0.97, "low": 0.95, "high": 0.98, "episodes": 1000, "command": "zoo test"}
CARD = cards.Card(
    format=1,
    name="base.toy",
    class_name="Toy",
    summary="A toy.",
    task="Toy task",
    parameters=15,
    sha256="ab" * 32,
    bytes=238,
    licence="Apache-2.0",
    metric=METRIC,
    architecture={"model_type": "llama", "hidden_size": 4},
    tokenizer={"kind": "words", "words": ["go", "größer"]},
    hparams={"lr": 0.1, "lora": None},
    training={"seeds": [1, 2]},
    source="made in a test",
    tied={},
)


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
    """A folder of its own with a sound card."""
    write(tmp_path / "toy" / "card.json")
    return tmp_path / "toy"


def write(path: Path, **changes: Any) -> None:
    """Write the card with some fields changed, and without those that are ``"REMOVE"``."""
    data = json.loads(CARD.to_json()) | changes
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({key: value for key, value in data.items() if value != "REMOVE"}), encoding="utf-8")


def test_json_round_trip_keeps_order_and_letters() -> None:
    text = CARD.to_json()
    assert cards.Card.from_json(text) == CARD
    assert list(json.loads(text))[:3] == ["format", "name", "class"]
    assert "größer" in text and text.endswith("}\n")


# -- the name -------------------------------------------------------------------------------------------------------


def test_missing_name_suggests_the_nearest(weights: Path) -> None:
    write(weights / "base.toy.json")
    with pytest.raises(cards.UnknownCheckpointError, match=r"base\.toi: neither .* did you mean base\.toy\?"):
        cards.read_card("base.toi")
    with pytest.raises(cards.UnknownCheckpointError, match="`zoo list` shows all 1"):
        cards.read_card("zzz")


def test_folder_without_card(tmp_path: Path) -> None:
    with pytest.raises(cards.UnknownCheckpointError, match=r"holds no card\.json: give one written by save_pretrained"):
        cards.read_card(tmp_path)
    assert cards.find_card(tmp_path) is None


def test_file_instead_of_its_folder(folder: Path) -> None:
    with pytest.raises(cards.UnknownCheckpointError, match="a file: give the folder it lies in"):
        cards.read_card(folder / "card.json")


def test_folder_may_end_like_a_pickle(tmp_path: Path) -> None:
    write(tmp_path / "step_3.ckpt" / "card.json")
    assert cards.read_card("step_3.ckpt") == CARD


def test_name_comes_before_a_folder_of_that_name(weights: Path, tmp_path: Path) -> None:
    write(weights / "base.toy.json")
    write(tmp_path / "base.toy" / "card.json", summary="The folder.")
    assert cards.read_card("base.toy").summary == "A toy."
    assert cards.read_card("./base.toy").summary == "The folder."


def test_zoo_weights_adds_folders(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    monkeypatch.setenv("ZOO_WEIGHTS", os.pathsep.join([str(mine), str(weights), str(mine)]))
    write(mine / "base.toy.json")
    assert cards.list_names() == ["base.toy"]
    write(weights / "base.toy.json")
    with pytest.raises(cards.CardError, match=r"base\.toy is in .*weights and in .*mine: rename or remove one"):
        cards.list_names()


def test_zoo_weights_with_a_folder_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_WEIGHTS", "nowhere")
    with pytest.raises(cards.CardError, match="ZOO_WEIGHTS lists nowhere, which is not a folder: make it"):
        cards.list_names()


def test_renamed_card_is_refused(weights: Path) -> None:
    write(weights / "base.toy.json")
    (weights / "base.toy.json").rename(weights / "base.other.json")
    with pytest.raises(cards.CardError, match=r"base\.other\.json: the card's name is base\.toy: call it"):
        cards.read_card("base.other")


# -- the card -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"licence": "REMOVE"}, "a card needs the key licence: add it"),
        ({"license": "MIT"}, r"a card has no key license: remove it \(known: format, name, class, "),
        ({"parameters": 1.5}, r"parameters must be int, not 1\.5"),
        ({"parameters": True}, "parameters must be int, not True"),
        ({"class": None}, "class must be str, not None"),
        ({"name": "../base"}, r"name '\.\./base' may hold letters"),
        ({"sha256": "ABC"}, "sha256 must be 64 hex digits in lower case"),
        ({"tied": {"a": 1}}, "tied must map names"),
        ({"metric": {"name": "x"}}, r"metric needs the key command, episodes, high, low, value: add it"),
        ({"metric": METRIC | {"low": 0.99}}, r"metric needs numbers low <= value <= high, not 0\.99, 0\.97, 0\.98"),
        ({"metric": METRIC | {"value": 0.5}}, r"metric needs numbers low <= value <= high, not 0\.95, 0\.5, 0\.98"),
        ({"metric": METRIC | {"value": "0.97"}}, "metric needs numbers low <= value <= high"),
    ],
)
def test_card_with_wrong_fields(folder: Path, changes: dict[str, Any], message: str) -> None:
    write(folder / "card.json", **changes)
    with pytest.raises(cards.CardError, match=rf"card\.json: {message}"):
        cards.read_card(folder)


@pytest.mark.parametrize("version", [2, 0, "1"])
def test_unknown_format(folder: Path, version: Any) -> None:
    write(folder / "card.json", format=version, invented_later=1)
    message = rf"card\.json: format {version!r} is unknown, this zoo reads format 1: upgrade"
    with pytest.raises(cards.CardVersionError, match=message):
        cards.read_card(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{\n  "format": 1,\n  "name" 3\n}', r"line 3, column 10: not json \(Expecting ':' delimiter\)"),
        (b"", r"line 1, column 1: not json"),
        (b"[1]", "a card is a json object, not a list"),
        (b'{"format": 1, "format": 1}', "the key 'format' appears twice: remove one"),
        (b'{"format": NaN}', "NaN is not json: a card holds finite numbers only"),
        (b'{"name": "\xff"}', r"not UTF-8 text \(byte 10\)"),
    ],
)
def test_malformed_json(folder: Path, content: bytes, message: str) -> None:
    (folder / "card.json").write_bytes(content)
    with pytest.raises(cards.CardError, match=rf"card\.json: {message}"):
        cards.read_card(folder)


# -- listing --------------------------------------------------------------------------------------------------------


def test_list_is_aligned(weights: Path) -> None:
    write(weights / "base.toy.json")
    long = {"name": "actguide.long_name", "metric": {}, "parameters": 1_234_567, "bytes": 2_469_214}
    write(weights / "actguide.long_name.json", **long)
    assert format_list(cards.list_cards()).splitlines() == [
        "name                class  task      parameters  metric                                size",
        "actguide.long_name  Toy    Toy task      1.23 M  not measured                       2.47 MB",
        "base.toy            Toy    Toy task          15  test/success 0.970 [0.950, 0.980]    238 B",
    ]
    assert format_list(cards.list_cards("actguide.*")).count("\n") == 1
    assert format_list([]) == "no checkpoints match"


def test_list_refuses_a_broken_card_rather_than_hiding_it(weights: Path) -> None:
    write(weights / "base.toy.json")
    (weights / "broken.json").write_text("{")
    with pytest.raises(cards.CardError, match=r"broken\.json: line 1"):
        cards.list_cards()


def test_show_names_everything(folder: Path) -> None:
    write(folder / "card.json", tokenizer={"kind": "words", "words": [str(i) for i in range(30)]}, tied={"a": "b"})
    text = format_card(cards.read_card(folder))
    lines = text.splitlines()
    assert lines[:2] == ["base.toy", "A toy."]
    for line in ("  words: 30 entries", "  seeds: [1, 2]", "  lora: null", "  model_type: llama"):
        assert line in lines
    for part in ("test/success 0.9700 [0.9500, 0.9800]", "a = b", "Apache-2.0", "zoo test", "made in a test"):
        assert part in text
    assert CARD.sha256 in text


def test_listing_needs_no_torch() -> None:
    """``zoo list`` has to answer within a second."""
    code = (
        "import sys, zoo.cards, zoo.listing, zoo.registry; zoo.registry.list_models(); "
        "print({'torch', 'lightning', 'transformers', 'huggingface_hub', 'numpy'} & sys.modules.keys())"
    )
    root = Path(cards.__file__).parents[1]
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert answer.stdout.strip() == "set()"
