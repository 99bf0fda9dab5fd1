"""Classes are found by the name in a card: the zoo's own and the user's."""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import torch

from zoo import cards, hub, registry
from zoo.registry import UnknownClassError, create_model, list_models, model_class, register_model


class Base:
    """Records what it is made with."""

    def __init__(self, source: str, pretrained: bool, overrides: dict[str, Any]) -> None:
        self.source, self.pretrained, self.overrides = source, pretrained, overrides

    @classmethod
    def from_card(cls, source: str, pretrained: bool = True, **overrides: Any) -> Self:
        return cls(source, pretrained, overrides)


@pytest.fixture(autouse=True)
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty weights folder and an empty registry. Warnings are errors."""
    monkeypatch.setattr(cards, "SHIPPED", tmp_path)
    monkeypatch.delenv("ZOO_WEIGHTS", raising=False)
    monkeypatch.setattr(registry, "_classes", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield tmp_path


def checkpoint(folder: Path, name: str, made_by: str) -> None:
    texts = dict.fromkeys(("summary", "task", "licence", "source"), "x")
    dicts: dict[str, Any] = {key: {} for key in ("metric", "architecture", "tokenizer", "hparams", "training")}
    hub.save(folder, {"w": torch.ones(2)}, {"name": name, "class": made_by, **texts, **dicts})


def test_users_class_and_its_subclass_are_found(weights: Path) -> None:
    @register_model
    class Mine(Base):
        pass

    @register_model
    class MineToo(Mine):
        pass

    for made_by in (Mine, MineToo):
        name = f"user.{made_by.__name__}"
        checkpoint(weights, name, made_by.__name__)
        model = create_model(name, lr=0.5)
        assert type(model) is made_by
        assert (model.source, model.pretrained, model.overrides) == (name, False, {"lr": 0.5})
        assert create_model(name, pretrained=True).pretrained is True


def test_folder_is_as_good_as_a_name(weights: Path) -> None:
    register_model(Base)
    checkpoint(weights / "elsewhere", "user.x", "Base")
    assert create_model(weights / "elsewhere").source == weights / "elsewhere"


def test_registering_twice_is_silent_another_class_warns() -> None:
    def define(module: str) -> type:
        return register_model(type("Mine", (Base,), {"__module__": module, "__qualname__": "Mine"}))

    define("first")
    again = define("first")  # a reload, or a notebook cell run twice
    assert model_class("Mine") is again
    with pytest.warns(UserWarning, match="model Mine of first is replaced by the one of second"):
        other = define("second")
    assert model_class("Mine") is other


def test_class_of_the_same_module_but_another_place_warns() -> None:
    def define(place: str) -> type:
        return register_model(type("Mine", (Base,), {"__qualname__": f"{place}.Mine"}))

    define("Here")
    with pytest.warns(UserWarning, match="is replaced"):
        define("There")


def test_taking_a_built_in_name_warns_before_it_is_imported() -> None:
    mine = type("ACTGuidePolicy", (Base,), {})
    with pytest.warns(UserWarning, match=r"model ACTGuidePolicy of zoo\.actguide\.module is replaced"):
        register_model(mine)
    assert model_class("ACTGuidePolicy") is mine


def test_built_in_is_imported_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        """Provides the module ``lazy_method``, which registers ``Lazy``."""

        @staticmethod
        def find_spec(name: str, *_: Any) -> Any:
            from importlib.machinery import ModuleSpec

            return ModuleSpec(name, Finder) if name == "lazy_method" else None  # type: ignore[arg-type]

        @staticmethod
        def create_module(spec: Any) -> None:
            return None

        @staticmethod
        def exec_module(module: types.ModuleType) -> None:
            register_model(type("Lazy", (Base,), {"__module__": "lazy_method"}))

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    monkeypatch.setitem(registry.BUILT_IN, "Lazy", "lazy_method")
    assert "lazy_method" not in sys.modules
    assert model_class("Lazy").__name__ == "Lazy"
    monkeypatch.delitem(sys.modules, "lazy_method")


def test_old_name_of_a_renamed_class() -> None:
    register_model(name="OldName")(Base)
    assert model_class("OldName") is Base
    with pytest.raises(UnknownClassError):
        model_class("Base")


def test_unknown_class_names_the_fix(weights: Path) -> None:
    checkpoint(weights, "user.x", "ACTGuidePolice")
    with pytest.raises(UnknownClassError, match=r"no class ACTGuidePolice .*did you mean ACTGuidePolicy\?.*import its"):
        create_model("user.x")
    with pytest.raises(UnknownClassError, match=r"known: ACTCritic, ACTGuidePolicy, .*ImitationPolicy"):
        model_class("Zzz")


def test_unknown_checkpoint() -> None:
    with pytest.raises(cards.UnknownCheckpointError, match="nothing: neither a folder nor a checkpoint"):
        create_model("nothing")


def test_class_without_from_card_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Plain has no classmethod from_card: derive it from zoo\.agent\.AgentModule"):

        @register_model
        class Plain:
            pass


def test_list_models_by_pattern(weights: Path) -> None:
    for name in ("base.lock", "actguide.lock", "actguide.maze"):
        checkpoint(weights, name, "Base")
    assert list_models() == ["actguide.lock", "actguide.maze", "base.lock"]
    assert list_models("actguide.*") == ["actguide.lock", "actguide.maze"]
    assert list_models("*.lock") == ["actguide.lock", "base.lock"]
    assert list_models("lock") == []
