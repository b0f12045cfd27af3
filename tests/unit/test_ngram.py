"""N-gram proposals: what followed the longest known context when it last occurred."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from card.speculation.ngram import NgramProposer

texts = st.lists(st.integers(0, 3), max_size=30)


def naive_proposal(text: list[int], context: list[int]) -> int | None:
    for size in (3, 2, 1):
        tail = context[-size:]
        if len(tail) == size:
            for at in range(len(text) - 1, size - 1, -1):
                if text[at - size : at] == tail:
                    return text[at]
    return None


def naive_hit_rate(text: list[int]) -> float:
    """A decaying average of which tokens of the text followed from those before them."""
    hit_rate = 0.5
    for at, token in enumerate(text):
        proposal = naive_proposal(text[:at], text[:at])
        if proposal is not None:
            hit_rate += ((proposal == token) - hit_rate) / 16
    return hit_rate


@given(texts, st.lists(st.integers(0, 3), max_size=5), st.integers(0, 6), st.integers(1, 7))
def test_proposals_follow_each_other_while_they_are_worth_a_row(
    text: list[int], behind: list[int], most: int, piece: int
) -> None:
    proposer = NgramProposer()
    for at in range(0, len(text), piece):
        proposer.extend(text[at : at + piece])
    hit_rate = naive_hit_rate(text)
    assert proposer.hit_rate == pytest.approx(hit_rate)
    expected: list[int] = []
    while len(expected) < most and hit_rate ** (len(expected) + 1) >= 0.2:
        proposal = naive_proposal(text, [*text, *behind, *expected])
        if proposal is None:
            break
        expected.append(proposal)
    assert proposer.propose(behind, most) == expected


def test_a_text_that_repeats_itself_has_a_high_hit_rate_and_one_that_never_does_a_low_one() -> None:
    repeating, surprising = NgramProposer(), NgramProposer()
    repeating.extend([1, 2, 3] * 30)
    surprising.extend([at * (at // 2) % 7 for at in range(90)])
    assert repeating.hit_rate > 0.9
    assert len(repeating.propose([], 8)) == 8
    assert surprising.hit_rate < repeating.hit_rate


def test_a_text_without_repetition_gives_no_proposal() -> None:
    proposer = NgramProposer()
    assert proposer.propose([], 4) == []
    proposer.extend(range(20))
    assert proposer.propose([], 4) == []
