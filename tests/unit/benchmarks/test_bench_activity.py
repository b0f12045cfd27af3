"""What a draft did between two moments."""

from __future__ import annotations

from bench.activity import DraftActivity


def test_what_was_done_since_is_the_difference() -> None:
    before, now = DraftActivity(100, 1_000, 7), DraftActivity(150, 1_400, 9)
    assert now.since(before) == DraftActivity(50, 400, 2)


def test_a_draft_that_was_started_afresh_says_nothing_of_the_text() -> None:
    assert DraftActivity(0, 400, 2).since(DraftActivity(100, 1_000, 7)) == DraftActivity(0, 0, 0)
