"""Phrases from what the target rejected (Ouroboros)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from fake_engine import FakeEngine, FakeModel
from numpy.typing import NDArray
from one_process import OneProcess, autoregressive, request_of, settings_of

from card.cache import Candidates
from card.speculation.ngram import NgramProposer
from card.speculation.sources.phrases import phrase_behind


@dataclass
class Rows:
    """Logits whose argmax is known; row 0 belongs to the last committed token."""

    choices: list[int]

    def row(self, index: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = np.eye(10, dtype=np.float32)[self.choices[index]]
        return row


@pytest.mark.parametrize(
    ("choices", "phrase"),
    [
        ([1, 9, 3, 4, 5], [3, 4, 5]),  # all that follows is what the target says too
        ([1, 9, 3, 7, 5], [3, 7]),  # but for the second
        ([1, 9, 8, 4, 5], [8]),
    ],
)
def test_behind_a_refused_candidate_counts_what_the_target_agrees_with_and_one_token_more(
    choices: list[int], phrase: list[int]
) -> None:
    verified = Candidates.chain([1, 2, 3, 4], [1.0] * 4)  # the second of them is refused: 9 comes
    assert phrase_behind(1, verified, Rows(choices)) == phrase


def test_a_phrase_is_proposed_behind_the_text_that_it_was_supposed_to_follow() -> None:
    proposer = NgramProposer()
    proposer.extend([1, 9])
    proposer.suppose([3, 4])
    assert proposer.candidates([], 2).tokens == [3, 4]
    proposer.extend([7])
    assert proposer.candidates([], 2).tokens == []
    assert sorted(proposer.candidates([9], 2, branches=2).tokens) == [3, 7]


def test_rejected_tails_give_candidates_that_the_text_alone_would_not() -> None:
    model, draft = FakeModel(24), FakeModel(24, agreement=0.7)
    request = request_of([1, 2, 3], 120, gamma=6)
    accepted = {}
    for proposals in ("ngram", "phrases"):
        settings = settings_of(proposals=proposals, lookahead=6, rows=12, depth=6)
        with OneProcess(
            FakeEngine(model, tree=False), FakeEngine(draft, tree=True), settings
        ) as both:
            stream = both.open(request)
            assert both.run([stream]) == [autoregressive(model, request)]
            proposer = next(iter(both.target._sessions.values())).proposer
            accepted[proposals] = len(proposer._supposed)
    assert accepted["ngram"] == 0 < accepted["phrases"]
