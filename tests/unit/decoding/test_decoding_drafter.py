"""What a request names, forbids or predicts decides what makes candidates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fake_engine import FakeEngine, FakeModel
from one_process import OneProcess, autoregressive, request_of, settings_of

from card.cache import SlotCounters, SlotRequest
from card.speculation.pacing import PACINGS

TARGET = FakeModel(64)
REQUEST = request_of(list(range(20)), 40)
TEXT = autoregressive(TARGET, REQUEST)
EXPECTED = replace(REQUEST, prediction=np.array(TEXT, np.int64))
"""N-grams of it are all right."""


def counted(request: SlotRequest) -> SlotCounters:
    """Of a text beside a draft that is always right; the text is that of the target alone."""
    engines = FakeEngine(TARGET, tree=False), FakeEngine(TARGET, tree=True)
    with OneProcess(*engines, settings_of(ngram_tokens=4)) as both:
        stream = both.open(request)
        assert both.run([stream]) == [TEXT]
        return stream.counters


@pytest.mark.parametrize("decoding", [name for name, each in PACINGS.items() if each.drafts])
def test_who_names_ngrams_asks_no_draft_and_waits_for_none(decoding: str) -> None:
    counters = counted(replace(EXPECTED, pacing=decoding, drafter="ngram"))
    assert (counters.queries, counters.accepted > len(TEXT) / 2) == (0, True)


def test_who_forbids_ngrams_gets_the_drafts_candidates_alone() -> None:
    counters = counted(replace(EXPECTED, proposes=False))
    assert counters.queries > 0
    assert counters.accepted > len(TEXT) / 2
    counters = counted(replace(EXPECTED, proposes=False, drafter="ngram"))
    assert (counters.accepted, counters.drafted) == (0, 0)


WHAT_MAY_BE_SAID = {
    "nothing": [],
    "the text": TEXT,
    "the text backwards": TEXT[::-1],
    "one token": [63] * 40,
    "the text with an edit": [*TEXT[:20], 1, 2, *TEXT[24:]],
}


def accepted(prediction: list[int]) -> int:
    """Of the candidates of a text without a draft; the text is that of the target alone."""
    request = replace(REQUEST, prediction=np.array(prediction, np.int64))
    engines = FakeEngine(TARGET, tree=False), FakeEngine(TARGET, tree=True)
    with OneProcess(*engines, settings_of(ngram_tokens=4)) as both:
        stream = both.open(request)
        assert both.run([stream], draft_steps=0) == [TEXT]
        return stream.counters.accepted


def test_most_of_a_text_that_was_predicted_is_accepted() -> None:
    counts = {name: accepted(prediction) for name, prediction in WHAT_MAY_BE_SAID.items()}
    assert counts["the text"] > len(TEXT) / 2
    assert counts["the text"] > counts["the text with an edit"] > 3 * counts["nothing"]
