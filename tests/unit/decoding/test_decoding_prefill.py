"""Long prompts among running streams: how much of a prompt a pass reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fake_engine import FakeEngine, FakeModel, fake
from one_process import OneProcess, Stream, request_of, settings_of

MODEL = FakeModel()
SMALL_CHUNK = 8
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
    with both_running(2, prefill_chunk=SMALL_CHUNK) as (both, running):
        long = both.open(request_of(LONG, 4), 3)
        chunks = 0
        while not long.output:
            before = [len(stream.output) for stream in running]
            both.target.step()
            chunks += 1
            assert last_pass(both)[1] <= SMALL_CHUNK
            assert all(
                len(stream.output) > count for stream, count in zip(running, before, strict=True)
            )
        assert chunks == -(-len(LONG) // (SMALL_CHUNK - len(running)))


@pytest.mark.parametrize("query", ["chain", "subtree"])
def test_candidates_leave_half_a_chunk_to_prompts(query: str) -> None:
    chunk = 2 * SMALL_CHUNK
    with both_running(3, prefill_chunk=chunk, rows="auto", query=query) as (both, _):
        for _ in range(8):
            both.draft.step()
        both.target.step()
        assert last_pass(both) > (0, chunk), "many are verified while no prompt is read"
        for _ in range(8):
            both.draft.step()
        both.open(request_of(LONG, 4), 3)
        both.target.step()
        read, rows = last_pass(both)
        assert read >= chunk // 2
        assert rows == chunk
