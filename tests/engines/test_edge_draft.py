"""The draft of a device, with the weights of a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_pair import DRAFT
from typer.testing import CliRunner

from card_client import CardError
from card_client.cli import app
from card_client.edge import TransformersModel


def test_draft_when_it_has_fewer_tokens_than_the_server_writes_gets_an_error() -> None:
    model = TransformersModel.load(DRAFT)
    with pytest.raises(CardError, match="token 9999, and the draft knows 3072 tokens alone"):
        model.next_token([1, 9999])


def test_a_draft_that_is_no_model_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["edge", "x", "--draft", str(tmp_path)])
    assert result.exit_code == 1
    assert "tokenizer.json is missing; a draft is a Hugging Face directory" in result.stderr


def test_transformers_drafts_the_same_whatever_it_read_before() -> None:
    model = TransformersModel.load(DRAFT)
    prompt = model.tokens("def fibonacci(n):")
    text = list(prompt)
    for _ in range(6):
        text.append(model.next_token(text))
    model.next_token([*prompt, 5, 6, 7])
    again = list(prompt)
    for _ in range(6):
        again.append(model.next_token(again))
    assert again == text
