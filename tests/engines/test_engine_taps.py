"""Hidden states that an engine taps: those of `transformers`, and no bit of a row changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_models
import torch
from numpy.typing import NDArray
from tiny_models import opened, random_tokens, read_alone

from card.engines import FOLLOWS_PREFIX, Engine, EngineError, SequenceTokens
from card.engines.calibration import check_row_invariance
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.options import EngineOptions
from card.engines.torch.engine import TorchEngine

pytestmark = pytest.mark.usefixtures("one_thread")

AnyEngine = TorchEngine | OpenVinoEngine

TAPS = (-1, 0, 1)
OPTIONS = EngineOptions(
    context=200, sessions=3, paths=4, dtype="float32", graph_rows=(1, 4, 16, 64), taps=TAPS
)
TEXT = random_tokens(30)


def widened(states: NDArray[np.uint16] | None) -> NDArray[np.float32]:
    assert states is not None
    return (states.astype(np.uint32) << 16).view(np.float32)


def expected_states(model: object, tokens: Sequence[int]) -> NDArray[np.float32]:
    """[tokens, numbers] of `TAPS`, by `transformers`."""
    with torch.inference_mode():
        found = model(torch.tensor([tokens]), output_hidden_states=True)  # type: ignore[operator]
    return torch.cat([found.hidden_states[tap][0] for tap in TAPS], dim=-1).float().numpy()


def read_states(engine: Engine, tokens: Sequence[int], chunks: Sequence[int]) -> NDArray[np.uint16]:
    """[tokens, numbers], read in chunks of these sizes, some without logits."""
    found, at = [], 0
    with opened(engine) as session:
        for count in chunks:
            rows = SequenceTokens(session, tokens[at : at + count], logits=at % 2)
            states = engine.forward([rows])[0].states
            assert states is not None
            found.append(states)
            engine.commit_kv(session, range(count))
            at += count
    return np.concatenate(found)


@pytest.mark.parametrize("family", ["llama3", "qwen3", "gemma3_text", "granite"])
def test_states_are_those_of_transformers_when_a_text_is_read_in_chunks(
    family: str, engine_class: type[AnyEngine], tmp_path: Path
) -> None:
    model = tiny_models.save(tmp_path, family)
    engine = engine_class.load(tmp_path, OPTIONS)
    found = widened(read_states(engine, TEXT, [16, 3, 1, 10]))
    expected = expected_states(model, TEXT)
    np.testing.assert_allclose(found, expected, rtol=0.01, atol=0.01 * np.abs(expected).mean())


def test_rows_get_their_own_states_when_sessions_and_trees_share_passes(
    engine_class: type[AnyEngine], tmp_path: Path
) -> None:
    """OpenVINO's decoders take the batch in two passes; the tree has a wrong path."""
    model = tiny_models.save(tmp_path, "llama3")
    engine = engine_class.load(tmp_path, replace(OPTIONS, graph_rows=(1, 16)))
    with opened(engine) as one, opened(engine) as two, opened(engine) as three:
        wrong = [7, *TEXT[:6]]
        batch = [
            SequenceTokens(one, TEXT[:12]),
            SequenceTokens(two, wrong, [FOLLOWS_PREFIX, FOLLOWS_PREFIX, *range(1, 6)]),
            SequenceTokens(three, TEXT[5:15], logits=1),
        ]
        found = [widened(logits.states) for logits in engine.forward(batch)]
    for states, text in zip(found, (TEXT[:12], TEXT[:6], TEXT[5:15]), strict=True):
        expected = expected_states(model, text)
        np.testing.assert_allclose(states[-len(text) :], expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("family", ["llama3", "qwen3", "gemma3_text"])
def test_no_bit_changes_when_states_are_tapped(
    family: str, engine_class: type[AnyEngine], tmp_path: Path
) -> None:
    tiny_models.save(tmp_path, family)
    plain = engine_class.load(tmp_path, replace(OPTIONS, taps=()))
    tapped = engine_class.load(tmp_path, OPTIONS)
    found = [read_alone(engine, TEXT, [1, 4, 16, 9]).tobytes() for engine in (plain, tapped)]
    assert found[0] == found[1]
    assert check_row_invariance(plain) == check_row_invariance(tapped)


def test_load_refuses_when_a_tap_is_beyond_the_layers(
    engine_class: type[AnyEngine], tmp_path: Path
) -> None:
    tiny_models.save(tmp_path, "llama3")
    with pytest.raises(EngineError, match=r"draft.taps names the hidden states \[3\]"):
        engine_class.load(tmp_path, replace(OPTIONS, taps=(1, 3)))
