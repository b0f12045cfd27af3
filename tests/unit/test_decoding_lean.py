"""A text that repeats itself needs no draft: it rests until a guess from the text is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from fake_engine import EMPTY_PATH, FakeEngine, FakeModel, extended
from numpy.typing import NDArray
from one_process import OneProcess, Stream, autoregressive, request_of, settings_of

PROMPT = [1, 2, 3]
NOVEL = [9, 4, 17, 22, 11, 6, 19, 14, 7, 20, 12, 5, 23, 16, 8, 21]
REFRAIN = [10, 13, 15, 18]
COSTS_MS = {1: 1.0, 2: 1.0, 4: 1.1, 8: 1.3, 16: 1.8, 32: 3.0}
ALONE_SHARE = 0.6


@dataclass(frozen=True)
class Song(FakeModel):
    """Sings its lines behind the prompt; behind anything else it hums what its seed says."""

    lines: tuple[int, ...] = ()
    known: dict[int, int] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        path = EMPTY_PATH
        for token in PROMPT:
            path = extended(path, token)
        for token in self.lines:
            self.known[path] = token
            path = extended(path, token)

    def row(self, path: int) -> NDArray[np.float32]:
        row = FakeModel.row(self, path)
        if path in self.known:
            row[self.known[path]] = np.float32(100)
        return row


BREAK = len(NOVEL) + 30 * len(REFRAIN)
SONG = Song(lines=(*NOVEL, *REFRAIN * 30, *NOVEL[::-1]))


class Concert:
    """Both loops over one song, and who did what after how many tokens."""

    def __init__(self, song: Song, lookahead: int = 6) -> None:
        self.song = song
        self.target = FakeEngine(song, tree=False)
        self.draft = FakeEngine(song, tree=True)
        self.target.row_costs_ms, self.target.alone_share = COSTS_MS, ALONE_SHARE
        self.both = OneProcess(
            self.target, self.draft, settings_of(rows="auto", lookahead=lookahead)
        )
        self.alone_at: set[int] = set()
        self.drafted_at: set[int] = set()

    def play(self, decoding: str = "card") -> Stream:
        """The song, which is the target's alone."""
        request = request_of(PROMPT, len(self.song.lines), decoding)
        stream = self.both.open(request)
        passes = 0

        def look() -> None:
            nonlocal passes
            if self.target.alone and self.target.batches:
                self.alone_at.add(len(stream.output))
            if len(self.draft.batches) > passes:
                passes = len(self.draft.batches)
                self.drafted_at.add(len(stream.output))

        assert self.both.run([stream], between=look) == [autoregressive(self.song, request)]
        assert stream.output == list(self.song.lines)
        return stream


@pytest.fixture
def concert() -> Iterator[Concert]:
    made = Concert(SONG)
    with made.both:
        yield made


def test_the_draft_rests_while_the_text_repeats_itself(concert: Concert) -> None:
    concert.play()
    resting = range(BREAK - 48, BREAK)
    assert not concert.drafted_at & set(resting)
    assert concert.alone_at & set(resting), "the target takes its cores"


def test_and_works_again_once_the_text_goes_another_way(concert: Concert) -> None:
    stream = concert.play()
    behind = {length for length in concert.drafted_at if length > BREAK}
    assert behind
    assert stream.counters.hits > 0
    novel = sum(length > BREAK for length in concert.alone_at)
    assert novel <= 1, "a break is noticed in the pass that met it"


def test_guesses_fill_more_rows_than_they_do_beside_a_draft(concert: Concert) -> None:
    stream = concert.play()
    longest = int(np.flatnonzero(stream.counters.tokens_per_step)[-1])
    assert longest > 16
    assert stream.counters.queries < stream.counters.steps, "no cache is asked that nobody fills"


def test_where_nothing_is_to_be_guessed_nothing_is_leant_on() -> None:
    with (concert := Concert(SONG, lookahead=0)).both:
        concert.play()
        assert {length for length in concert.drafted_at if BREAK - 48 <= length < BREAK}


@pytest.mark.parametrize("decoding", ["draft_then_verify", "pearl"])
def test_pacings_that_wait_for_their_draft_never_send_it_away(decoding: str) -> None:
    with (concert := Concert(SONG)).both:
        concert.play(decoding)
        assert {length for length in concert.drafted_at if BREAK - 48 <= length < BREAK}


def test_a_target_that_takes_over_lets_the_draft_work(concert: Concert) -> None:
    """Whoever sent it to rest is gone."""
    request = request_of(PROMPT, len(SONG.lines))
    stream = concert.both.open(request)
    replaced = False

    def replace_while_resting() -> None:
        nonlocal replaced
        if not replaced and len(stream.output) > BREAK - 40:
            replaced = True
            concert.both.restart_target(FakeEngine(SONG, tree=False))

    passes = len(concert.draft.batches)
    assert concert.both.run([stream], between=replace_while_resting) == [list(SONG.lines)]
    assert replaced
    assert len(concert.draft.batches) > passes
