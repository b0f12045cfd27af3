"""The target publishes hidden states of committed tokens where a draft reads them, and only
there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from fake_engine import FakeEngine, FakeModel
from one_process import OneProcess, request_of, settings_of

from card.engines import Logits, SequenceTokens

PLACES, NUMBERS = 16, 4
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]


class TappedEngine(FakeEngine):
    """A row's states are its token and the tokens of its path."""

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        found = super().forward(batch, alone=alone)
        for rows, logits in zip(batch, found, strict=True):
            states = np.zeros((len(rows.tokens), NUMBERS), np.uint16)
            states[:, 0] = rows.tokens
            logits.states = states  # type: ignore[misc]
        return found


def tapped(model: FakeModel) -> TappedEngine:
    return TappedEngine(model, tree=False)


@pytest.mark.parametrize("decoding", ["card", "draft_then_verify"])
def test_states_are_those_of_the_committed_text_when_a_draft_reads_them(decoding: str) -> None:
    model = FakeModel()
    draft = FakeEngine(FakeModel(agreement=0.6), tree=True)
    settings = settings_of(query="subtree")
    with OneProcess(tapped(model), draft, settings, states=(PLACES, NUMBERS)) as both:
        (stream,) = [both.open(request_of(PROMPT, 40, decoding))]
        slot, seen = both.pool.draft_slot(0), 0

        def look() -> None:
            nonlocal seen
            first, states = slot.states(stream.session_id, 0)
            text = [*PROMPT, *stream.output]
            assert states[:, :1].ravel().tolist() == text[first : first + len(states)]
            if stream.output:  # the last token becomes a row of the next pass
                assert first + len(states) == len(text) - 1
                assert len(states) == min(PLACES, len(text) - 1)
                seen += 1

        both.run([stream], between=look)
    assert seen > 4


def test_only_the_last_tokens_of_a_prompt_are_published_when_it_is_longer_than_the_ring() -> None:
    settings = settings_of(prefill_chunk=8)
    draft = FakeEngine(FakeModel(), tree=True)
    with OneProcess(tapped(FakeModel()), draft, settings, states=(PLACES, NUMBERS)) as both:
        stream = both.open(request_of(PROMPT, 8))
        slot, firsts = both.pool.draft_slot(0), set[int]()
        while not stream.output:
            both.target.step()
            first, states = slot.states(stream.session_id, 0)
            if len(states):
                firsts.add(first)
    assert firsts == {len(PROMPT) - PLACES}
