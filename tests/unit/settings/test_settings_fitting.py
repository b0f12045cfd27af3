"""The default context is at most what the models were built for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from settings_files import Write, refusal

from card.settings import LimitSettings, load_settings

pytestmark = pytest.mark.usefixtures("no_overrides")

MISTRAL = {"model_type": "mistral", "max_position_embeddings": 8192, "sliding_window": 1024}


@pytest.fixture
def pair(tmp_path: Path) -> str:
    """The sections of two models, of which the draft has 2,048 positions and the target 8,192."""
    _configure(tmp_path / "target", max_position_embeddings=8192)
    _configure(tmp_path / "draft", max_position_embeddings=2048)
    return "target: {path: target}\ndraft: {path: draft}\n"


def _configure(model: Path, **config: Any) -> None:
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(config))


def test_default_context_is_that_of_the_shorter_model(write: Write, pair: str) -> None:
    limits = load_settings(write(pair + "limits: {max_tokens: 300}\n")).limits
    assert (limits.context_tokens, limits.prompt_tokens, limits.max_tokens) == (2048, 2047, 300)


@pytest.mark.parametrize(
    ("device", "slides", "fits"),
    [
        ("cuda", {}, 1024),
        ("cuda", {"use_sliding_window": False}, 2048),
        ("cpu", {}, 2048),
    ],
)
def test_default_context_is_at_most_a_sliding_window_where_attention_does_not_slide(
    tmp_path: Path, write: Write, pair: str, device: str, slides: dict[str, bool], fits: int
) -> None:
    _configure(tmp_path / "target", **MISTRAL, **slides)
    on_device = pair.replace("path: target", f"path: target, device: {device}, engine: torch")
    assert load_settings(write(on_device)).limits.context_tokens == fits


def test_draft_that_is_not_loaded_does_not_limit_the_context(write: Write, pair: str) -> None:
    settings = load_settings(write("target: {path: target}\ndraft: null\n"))
    assert settings.limits == LimitSettings.model_validate({})


def test_context_that_is_set_stays_for_the_engine_to_refuse(write: Write, pair: str) -> None:
    said = "limits: {context_tokens: 4000}\n"
    assert load_settings(write(pair + said)).limits.context_tokens == 4000


def test_prompt_limit_above_the_models_positions_is_refused_by_name(
    write: Write, pair: str
) -> None:
    said = refusal(write(pair + "limits: {prompt_tokens: 2048}\n"))
    assert "limits.prompt_tokens must be below the 2048 positions " in said
    assert "(got 2048)" in said
