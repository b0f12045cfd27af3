"""What the server tells of its chat template is what a client renders with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from google.protobuf import text_format
from real_pair import TARGET
from tritonclient.grpc import model_config_pb2

from card.serving.requests.chat_parameters import as_protobuf_text, chat_parameters
from card.settings import REPOSITORY_ROOT
from card_client.chat_template import template_of

TEMPLATE = """{{ bos_token }}{% for message in messages %}
"\\\t{{ message.content }} \u200bé🙂'\x07
{% endfor %}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(TARGET / name, tmp_path)
    config = {"bos_token": {"content": "<|pad|>"}, "add_bos_token": True, "unk_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return tmp_path


def read_back(parameters: dict[str, str]) -> dict[str, str]:
    """As Triton reads the configuration that they are added to."""
    ensemble = (REPOSITORY_ROOT / "model_repository/ensemble/config.pbtxt").read_text()
    added = as_protobuf_text(parameters)
    config = text_format.Parse(f"{ensemble}\n{added}", model_config_pb2.ModelConfig())
    return {name: value.string_value for name, value in config.parameters.items()}


def test_a_client_gets_the_template_its_tokens_and_the_token_that_is_added(model: Path) -> None:
    told = read_back(chat_parameters(model))
    assert told == {
        "chat_template": TEMPLATE,
        "bos_token": "<|pad|>",
        "leading_token": "<|pad|>",
    }
    template = template_of(told)
    assert template is not None
    prompt = template.render([{"role": "user", "content": "Hi"}])
    assert "Hi" in prompt
    assert "<|pad|>" not in prompt  # the server's tokenizer adds it


def test_a_model_without_a_template_tells_nothing(model: Path) -> None:
    assert read_back(chat_parameters(TARGET)) == {}
    assert template_of({}) is None
    (model / "tokenizer.json").write_text("{")
    assert chat_parameters(model) == {}
