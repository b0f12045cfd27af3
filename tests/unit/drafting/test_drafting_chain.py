"""Passes that follow one another before anybody looks make what passes one by one make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from fake_engine import FakeEngine, FakeModel
from one_process import GREEDY, OneProcess, autoregressive, request_of, settings_of

from card.cache import SlotRequest
from card.engines import Logits, Ranking, SequenceTokens

TARGET = FakeModel()


class RunsAhead(FakeEngine):
    """Counts the passes of every chain."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.runs_ahead = True
        self.chains: list[int] = []

    def forward_chain(
        self, rows: SequenceTokens, rankings: Sequence[Ranking], entry: int
    ) -> list[Logits]:
        self.chains.append(1 + len(rankings))
        return super().forward_chain(rows, rankings, entry)


def written(draft: FakeEngine, request: SlotRequest, **settings: Any) -> tuple[list[int], int]:
    """A text and the target's passes for it."""
    target = FakeEngine(TARGET, tree=False)
    with OneProcess(target, draft, settings_of(**settings)) as both:
        stream = both.open(request)
        both.run([stream])
        both.draft.step()  # it may look at a text that is whole
        return stream.output, stream.counters.steps


def test_a_turn_is_one_chain_of_what_the_draft_takes_for_likeliest() -> None:
    request = request_of([1, 2, 3], 61, "draft_then_verify", GREEDY, 4)
    draft = RunsAhead(TARGET, tree=True)
    text, steps = written(draft, request)
    assert text == autoregressive(TARGET, request)
    # The prompt gives one token, each turn of a draft that is always right five.
    assert steps == 1 + 60 // 5
    assert draft.chains[:11] == [4] * 11


@pytest.mark.parametrize(
    ("decoding", "settings"),
    [
        ("card", {}),
        ("draft_then_verify", {"drafter": "cascade"}),
        ("draft_then_verify", {"growth": "layered"}),
    ],
)
def test_drafter_when_it_depends_on_results_reads_those_of_each_pass(
    decoding: str, settings: dict[str, Any]
) -> None:
    draft = RunsAhead(FakeModel(agreement=0.8), tree=True)
    request = request_of([1, 2, 3], 40, decoding, GREEDY)
    text, _ = written(draft, request, **settings)
    assert text == autoregressive(TARGET, request)
    assert not draft.chains
