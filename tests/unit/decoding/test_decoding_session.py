"""How the target takes a session up: a long prompt holds nobody else up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_engine import FakeEngine, FakeModel
from serving_double import make_pool

from card.cache import Geometry, SlotRequest
from card.decoding.session import TargetSession
from card.sampling import SamplingParameters
from card.speculation.ngram import NgramProposer
from card.speculation.pacing import PACINGS

CHUNK = 8
PROMPT = [1, 2, 3, 4] * 8
GEOMETRY = Geometry(slots=1, nodes=64, prompt=64, output=16, bad_words=0, bad_word_tokens=0)


def adopted(folder: Path, engine: FakeEngine, decoding: str) -> TargetSession:
    pool = make_pool(folder, GEOMETRY)
    request = SlotRequest(np.array(PROMPT), 8, decoding, SamplingParameters())
    pool.card_slot(0).open(request, pool.new_session_id())
    slot = pool.target_slot(0)
    opened = slot.opened()
    assert opened is not None
    return TargetSession.adopt(slot, *opened, engine)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(FakeModel(16), tree=False, sessions=1, context=64)


@pytest.mark.parametrize("decoding", list(PACINGS))
def test_ngrams_learn_a_prompt_as_it_is_read_where_any_are_made(
    tmp_path: Path, engine: FakeEngine, decoding: str
) -> None:
    session = adopted(tmp_path, engine, decoding)
    whole, so_far = NgramProposer(), NgramProposer()
    whole.extend(PROMPT)
    for read in range(0, len(PROMPT), CHUNK):
        assert session.proposer.propose([], 4) == so_far.propose([], 4)
        rows = session.prefill(engine, CHUNK)
        engine.forward([rows])
        engine.commit_kv(session.engine_session, range(len(rows.tokens)))
        if decoding != "autoregressive":
            so_far.extend(PROMPT[read : read + CHUNK])
    proposes = decoding != "autoregressive"
    assert session.proposer.propose([], 4) == (whole.propose([], 4) if proposes else [])
    assert len(whole.propose([], 4)) > 1
