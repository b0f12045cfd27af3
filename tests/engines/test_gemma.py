"""Gemma 3 270M in Q4_K_M writes llama.cpp's texts wherever llama.cpp's choice is clear.

`scripts/setup --model gemma3-270m` fetches the model; without it these tests are skipped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from card.engines import SequenceTokens
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import EngineOptions
from card.settings import REPOSITORY_ROOT
from model_files import model_at, model_files_of

MODEL = REPOSITORY_ROOT / "models/gemma3-270m"
TEXTS = json.loads(
    (Path(__file__).parent / "llama_cpp_ids/gemma3-270m.json").read_text(encoding="utf-8")
)
CLEAR = 0.75
"""A lead of llama.cpp's that rounding must not turn: both round the inputs of products."""
CHUNK = 16

pytestmark = pytest.mark.skipif(
    not MODEL.exists(), reason="run scripts/setup --model gemma3-270m to fetch the model"
)


@dataclass(frozen=True)
class Known:
    """ids  of the prompt; text, leads  what llama.cpp wrote, and how clear each choice was"""

    prompt: str
    ids: list[int]
    text: list[int]
    leads: list[float]


@pytest.fixture(scope="module")
def engine() -> OpenVinoEngine:
    options = EngineOptions(
        context=256, sessions=1, threads=2, compressed=True, graph_rows=(1, CHUNK)
    )
    return OpenVinoEngine.load(model_at(MODEL), options)


@pytest.fixture(params=TEXTS, ids=lambda text: text["prompt"][:12])
def known(request: pytest.FixtureRequest) -> Known:
    return Known(**request.param)


def choices(engine: OpenVinoEngine, known: Known) -> NDArray[np.int64]:
    """The engine's choice at each place of llama.cpp's text."""
    session = engine.open_session()
    read = [*known.ids, *known.text[:-1]]
    found = []
    for start in range(0, len(read), CHUNK):
        chunk = read[start : start + CHUNK]
        (logits,) = engine.forward([SequenceTokens(session, chunk)])
        found += [int(logits.row(index).argmax()) for index in range(len(chunk))]
        engine.commit_kv(session, range(len(chunk)))
    engine.close_session(session)
    return np.array(found[len(known.ids) - 1 :])


def test_prompts_become_the_ids_of_llama_cpp(known: Known) -> None:
    assert model_files_of(MODEL).tokenizer().encode(known.prompt).ids == known.ids


def test_every_clear_choice_is_that_of_llama_cpp(engine: OpenVinoEngine, known: Known) -> None:
    clear = np.array(known.leads) > CLEAR
    assert clear.sum() > len(clear) // 3
    np.testing.assert_array_equal(choices(engine, known)[clear], np.array(known.text)[clear])
