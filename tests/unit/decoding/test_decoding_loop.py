"""The target's loop: sessions taken up, prefilled, decoded together, resumed and let go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_engine import EMPTY_PATH, FakeEngine, FakeModel, extended, fake
from numpy.typing import NDArray
from one_process import OneProcess, autoregressive, repeating_text, request_of, settings_of

from card.cache import MAX_ROWS, Finish, SlotState
from card.sampling import likeliest, log_probability

MODEL = FakeModel()


class BrokenModel(FakeModel):
    """Gives no numbers behind one path."""

    broken: int = -1

    def row(self, path: int) -> NDArray[np.float32]:
        row = super().row(path)
        return np.full_like(row, np.nan) if path == self.broken else row


def both_loops(target: FakeModel = MODEL, **speculation: Any) -> OneProcess:
    return OneProcess(
        FakeEngine(target, tree=False), FakeEngine(MODEL, tree=True), settings_of(**speculation)
    )


def test_sessions_of_any_age_share_a_pass() -> None:
    with both_loops() as both:
        requests = [request_of([n, 1], 12) for n in range(3)]
        streams = [both.open(requests[0], 0)]
        both.target.step()
        both.target.step()
        streams += [both.open(requests[1], 1), both.open(requests[2], 2)]
        both.target.step()
        assert [rows.session for rows in fake(both.target_engine).batches[-1]] == [0, 1, 2]
        assert both.run(streams) == [autoregressive(MODEL, request) for request in requests]


@pytest.mark.parametrize(
    ("behind", "hit"),
    [
        ([], True),  # the root is the last committed token
        ([0, 0], True),  # it lies two tokens back, and the tree holds what was committed since
        ([0, 1], False),  # the tree holds something else
        ([0, 0, 0, 0, 0], True),  # it lies before the prompt
        (None, False),  # it lies in the future
    ],
)
def test_the_query_descends_from_the_trees_root_to_the_last_committed_token(
    behind: list[int] | None, hit: bool
) -> None:
    """`behind`: by how much each committed token behind the root differs in the tree."""
    request = request_of([1, 2], 12)
    text = [1, 2, *autoregressive(MODEL, request)]
    with both_loops() as both:
        stream = both.open(request)
        for _ in range(3):
            both.target.step()
        length = 2 + len(stream.output)
        assert length == 5
        root = length + 1 if behind is None else length - len(behind)
        known = [(t + d) % 24 for t, d in zip(text[root:], behind or [], strict=False)]
        nodes = [*known, *text[length : length + 3]]
        both.pool.draft_slot(0).replace(
            stream.session_id,
            root,
            np.array(nodes),
            np.arange(len(nodes)) - 1,
            np.full(len(nodes), -0.1),
        )
        before = stream.counters
        both.target.step()
        counters = stream.counters
        assert (counters.hits - before.hits, counters.misses - before.misses) == (hit, not hit)
        assert counters.accepted == (3 if hit else 0)


@pytest.mark.parametrize(
    ("rows", "ngram_tokens", "proposed"), [(8, 0, 0), (8, 4, 4), (8, 1, 1), (2, 4, 1)]
)
def test_rows_that_the_cache_leaves_unused_verify_ngram_proposals(
    rows: int, ngram_tokens: int, proposed: int
) -> None:
    text = repeating_text(MODEL)
    request = request_of(text, 9)
    with both_loops(rows=rows, ngram_tokens=ngram_tokens) as both:
        stream = both.open(request)
        both.target.step()
        both.target.step()
        (found,) = fake(both.target_engine).batches[-1]
        assert list(found.tokens) == [*text, *text[1:]][1 : 2 + proposed]
        assert stream.counters.drafted == proposed
        assert stream.counters.accepted == min(proposed, 1)
        assert both.run([stream]) == [autoregressive(MODEL, request)]


def test_without_a_draft_a_subtree_query_verifies_several_followers_in_one_pass() -> None:
    every = range(MODEL.vocabulary)
    prompt = [
        token for first in every for token in (first, (first + 1) % MODEL.vocabulary, first, 5)
    ]
    request = request_of(prompt, 9)
    with both_loops(drafter="ngram", query="subtree", branches=3, rows=8, ngram_tokens=6) as both:
        stream = both.open(request)
        batches = fake(both.target_engine).batches
        while not batches or batches[-1][0].parents is None:
            both.target.step()
        (found,) = batches[-1]
        assert found.parents is not None
        leaves = set(range(len(found.tokens))) - set(found.parents)
        assert 1 < len(leaves) <= 3
        assert both.run([stream]) == [autoregressive(MODEL, request)]


def test_closed_sessions_leave_no_trace_in_the_engines() -> None:
    with both_loops() as both:
        for round_ in range(3):
            streams = [both.open(request_of([round_, n], 30), n) for n in range(4)]
            for _ in range(4):
                both.draft.step()
                both.target.step()
            both.close(streams)
            assert fake(both.target_engine).open_sessions == 0
            assert fake(both.draft_engine).open_sessions == 0
            assert both.pool.states.tolist() == [SlotState.FREE] * 4


def test_a_stop_of_the_draft_ends_with_the_target_that_ordered_it() -> None:
    with both_loops() as both:
        stream = both.open(request_of([1, 2], 12))
        both.target.step()
        both.pool.target_slot(0).stop_draft_until(1000)
        assert both.pool.draft_slot(0).stopped_until(stream.session_id) == 1000
        both.restart_target(FakeEngine(MODEL, tree=False))
        both.target.step()
        assert both.pool.draft_slot(0).stopped_until(stream.session_id) == 0
        both.run([stream])
        assert stream.counters.accepted > 0


def test_session_when_its_logits_are_broken_fails_alone() -> None:
    broken, sound = request_of([9, 9], 12), request_of([8, 8], 12)
    text = [9, 9, *autoregressive(MODEL, broken)[:4]]
    path = EMPTY_PATH
    for token in text:
        path = extended(path, token)
    model = BrokenModel()
    object.__setattr__(model, "broken", path)
    with both_loops(model) as both:
        streams = [both.open(broken, 0), both.open(sound, 1)]
        outputs = both.run(streams)
        assert streams[0].finish is Finish.FAILED
        assert streams[1].finish is Finish.LENGTH
        assert outputs[0] == text[2 : 2 + len(outputs[0])]
        assert outputs[1] == autoregressive(MODEL, sound)
        both.close(streams)
        assert fake(both.target_engine).open_sessions == 0


@pytest.mark.parametrize("length", [1, 2, 9, 200])
def test_a_scored_prompt_reports_each_token_behind_those_before_it(length: int) -> None:
    """In passes of no more rows than a verification has; and the text is the same."""
    prompt = [token % MODEL.vocabulary for token in range(length)]
    plain = request_of(prompt, 6)
    request = replace(plain, likeliest=3, prompt_log_probabilities=True)
    with both_loops(prefill_chunk=256) as both:
        stream = both.open(request)
        both.run([stream])
        assert stream.output == autoregressive(MODEL, plain)
        assert max(len(batch[0].tokens) for batch in fake(both.target_engine).batches) <= MAX_ROWS
        for place in range(1, length):
            row = MODEL.row_after(prompt[:place])
            found = likeliest(row, 3)
            assert stream.slot.prompt_log_probability(place) == log_probability(row, prompt[place])
            ids = [token for token, _ in stream.slot.likeliest_of_prompt(place)]
            assert ids == found.ids.tolist()
        for place in range(6):
            row = MODEL.row_after([*prompt, *stream.output[:place]])
            best, *_ = stream.slot.likeliest(place)
            assert best[0] == int(row.argmax()) == stream.output[place]
