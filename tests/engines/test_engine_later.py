"""Decoders for fixed numbers of rows take the place of one for any rows while sessions are open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_models
from real_pair import TARGET
from tiny_models import forward_rows, random_tokens

from card.engines import SequenceTokens
from card.engines.openvino.engine import OpenVinoEngine
from card.engines.openvino.graph import ANY_ROWS
from card.engines.openvino.later import Exchange
from card.engines.options import EngineOptions
from card.engines.phases import watched_by
from card.engines.row_costs import RowCosts

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS = EngineOptions(
    context=512, sessions=2, threads=1, graph_rows=(1, 4, 16, 64), compressed=True
)


def test_a_text_goes_on_with_the_same_bits() -> None:
    engine = OpenVinoEngine.load(TARGET, OPTIONS, any_rows=True)
    engine.row_invariant = True
    assert engine.model.decoders.keys() == {ANY_ROWS}
    text = random_tokens(120, vocabulary=engine.vocabulary)
    expected = tiny_models.read_alone(engine, text, [64, 1])
    session = engine.open_session()
    (found,) = forward_rows(engine, [SequenceTokens(session, text[:50])])
    engine.commit_kv(session, range(50))
    told: list[RowCosts] = []
    Exchange(engine, 2, told.append).wait()
    (costs,) = told
    assert costs.pass_ms.keys() == {1, 4, 16, 64}
    at = 50
    for count in (1, 4, 3, 12, 50):
        (more,) = forward_rows(engine, [SequenceTokens(session, text[at : at + count])])
        engine.commit_kv(session, range(count))
        found = np.concatenate([found, more])
        at += count
    assert engine.model.decoders.keys() == {1, 4, 16, 64}
    assert engine.row_costs is costs
    assert engine.options.threads_alone == 2
    np.testing.assert_array_equal(found, expected)


def test_what_a_load_before_measured_is_not_measured_again(
    tmp_path: Path,
) -> None:
    tiny_models.save(tmp_path, "qwen3")
    engine = OpenVinoEngine.load(tmp_path, replace(OPTIONS, context=256), any_rows=True)
    costs = RowCosts({1: 1.0, 64: 9.0})
    heard: list[str] = []
    with watched_by(heard.append):
        Exchange(engine, 2, lambda _: pytest.fail("nothing new was found"), costs).wait()
    assert heard == ["exchange decoders", "compile", "exchange decoders", ""]  # as `/ready` tells
    assert engine.model.decoders.keys() == {1, 4, 16, 64}
    assert engine.row_costs is costs
    assert engine.options.threads_alone == 2


def test_decoders_that_round_otherwise_are_not_used(tmp_path: Path) -> None:
    tiny_models.save(tmp_path, "qwen3")
    engine = OpenVinoEngine.load(tmp_path, replace(OPTIONS, context=256), any_rows=True)
    other = tmp_path / "other"
    other.mkdir()
    tiny_models.save(other, "qwen3", seed=1)
    another = OpenVinoEngine.load(other, engine.options)
    engine.model = replace(engine.model, compile_more=lambda _: another.model.decoders)
    Exchange(engine, 2, lambda _: pytest.fail("they are not to be used")).wait()
    text = random_tokens(8)
    tiny_models.read_alone(engine, text, [8])
    assert engine.model.decoders.keys() == {ANY_ROWS}
