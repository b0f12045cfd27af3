"""Long prompts among running streams: nobody waits for more than one chunk of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine, FakeModel, fake
from one_process import OneProcess, Stream, request_of, settings_of
from serving_double import make_pool

from card.cache import Geometry, SlotRequest
from card.decoding.open_sessions import taken_over
from card.decoding.session import TargetSession
from card.sampling import SamplingParameters
from card.speculation.ngram import NgramProposer
from card.speculation.pacing import PACINGS

MODEL = FakeModel()
CHUNK = 8
LONG = [token % 20 for token in range(100)]


@contextmanager
def both_running(count: int, **settings: Any) -> Iterator[tuple[OneProcess, list[Stream]]]:
    """`count` streams that have begun and go on for long, in the first slots."""
    engines = FakeEngine(MODEL, tree=False), FakeEngine(MODEL, tree=True)
    with OneProcess(*engines, settings_of(**settings)) as both:
        running = [both.open(request_of([number, 1], 120), number) for number in range(count)]
        while not all(stream.output for stream in running):
            both.target.step()
        yield both, running


def last_pass(both: OneProcess) -> tuple[int, int]:
    """Prompt tokens that the target's last pass read, and all its rows."""
    engine = fake(both.target_engine)
    read = [len(rows.tokens) for rows in engine.batches[-1] if rows.logits is not None]
    return sum(read), sum(len(rows.tokens) for rows in engine.batches[-1])


def test_every_running_stream_gets_a_token_with_each_chunk_of_a_long_prompt() -> None:
    with both_running(2, prefill_chunk=CHUNK) as (both, running):
        long = both.open(request_of(LONG, 4), 3)
        chunks = 0
        while not long.output:
            before = [len(stream.output) for stream in running]
            both.target.step()
            chunks += 1
            assert last_pass(both)[1] <= CHUNK
            assert all(
                len(stream.output) > count for stream, count in zip(running, before, strict=True)
            )
        assert chunks == -(-len(LONG) // (CHUNK - len(running)))


@pytest.mark.parametrize("query", ["chain", "subtree"])
def test_candidates_leave_half_a_chunk_to_prompts(query: str) -> None:
    chunk = 2 * CHUNK
    with both_running(3, prefill_chunk=chunk, rows="auto", query=query) as (both, _):
        for _ in range(8):
            both.draft.step()
        both.target.step()
        assert last_pass(both) > (0, chunk), "many are verified while nobody reads"
        for _ in range(8):
            both.draft.step()
        both.open(request_of(LONG, 4), 3)
        both.target.step()
        read, rows = last_pass(both)
        assert read >= chunk // 2
        assert rows == chunk


PROMPT = [1, 2, 3, 4] * 8
GEOMETRY = Geometry(slots=1, nodes=64, prompt=64, output=16, bad_words=0, bad_word_tokens=0)


def adopted(folder: Path, engine: FakeEngine, decoding: str) -> TargetSession:
    pool = make_pool(folder, GEOMETRY)
    request = SlotRequest(np.array(PROMPT), 8, decoding, SamplingParameters())
    pool.card_slot(0).open(request, pool.new_session_id())
    slot = pool.target_slot(0)
    opened = slot.opened()
    assert opened is not None
    return taken_over(slot, *opened, engine)


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
