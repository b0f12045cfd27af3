"""Decoding greedily, one row a pass, writes what `transformers` writes with a trained target."""

from __future__ import annotations

import pytest
import torch
from real_pair import TARGET
from tiny_models import opened
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from card.engines import Engine, SequenceTokens
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import EngineOptions
from card.engines.torch.engine import TorchEngine

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENS = 64


@pytest.fixture(scope="module")
def reference() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)


@pytest.fixture(scope="module")
def engine(engine_class: type[TorchEngine] | type[OpenVinoEngine]) -> Engine:
    return engine_class.load(TARGET, EngineOptions(context=256, sessions=1, dtype="float32"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TARGET / "tokenizer.json"))


def decode_greedily(engine: Engine, prompt: list[int]) -> list[int]:
    """Prefill all but the last token, then one row a pass: what the target's loop does alone."""
    text = list(prompt)
    with opened(engine) as session:
        engine.forward([SequenceTokens(session, text[:-1], logits=0)])
        engine.commit_kv(session, range(len(text) - 1))
        for _ in range(TOKENS):
            logits = engine.forward([SequenceTokens(session, text[-1:])])[0]
            engine.commit_kv(session, [0])
            text.append(int(logits.row(0).argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize(
    "prompt",
    [
        "def fibonacci(n):\n    ",
        "import os\nimport sys\n\n\nclass Stack:\n    def __init__(self",
        'def is_palindrome(text: str) -> bool:\n    """Say whether',
    ],
)
def test_greedy_text_equals_that_of_transformers(
    reference: PreTrainedModel, engine: Engine, tokenizer: Tokenizer, prompt: str
) -> None:
    ids = tokenizer.encode(prompt).ids
    expected = reference.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=TOKENS,
        pad_token_id=0,
    )[0, len(ids) :].tolist()
    found = decode_greedily(engine, ids)
    assert len(set(expected)) > 5, "a text so poor that a mistake would not show"
    # transformers stops at the end of text, the engine does not know it.
    assert found[: len(expected)] == expected
