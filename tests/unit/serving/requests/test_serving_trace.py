"""What a client that follows speculation is told: every step, and how the tree changed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from fake_engine import FakeEngine, FakeModel
from follower_double import Scene
from one_process import OneProcess, autoregressive, repeating_text, request_of, settings_of

from card.cache import Candidates, Finish, Pool, Step
from card.serving.requests.trace import Trace


def traced(text: list[int], decoding: str, ngram_tokens: int) -> tuple[list[int], list[Any]]:
    """The output of a session that is followed after each step, and all that it tells."""
    model = FakeModel(16)
    settings = settings_of(ngram_tokens=ngram_tokens)
    target, draft = (FakeEngine(model, tree=True, sessions=4, context=512) for _ in range(2))
    with OneProcess(target, draft, settings) as process:
        stream = process.open(replace(request_of(text, 24, decoding), trace=True))
        trace = Trace(stream.slot, stream.session_id, model.vocabulary, len(text), 0)
        events: list[Any] = []
        (output,) = process.run([stream], between=lambda: events.extend(trace.look(1)))
        return output, events + trace.look(1)


@pytest.mark.parametrize("decoding", ["card", "autoregressive"])
def test_the_steps_are_the_text(decoding: str) -> None:
    model = FakeModel(16)
    text = repeating_text(model)
    output, events = traced(text, decoding, 0)
    steps = [event for event in events if "tokens" in event]
    assert [token for step in steps for token in step["tokens"]] == output
    assert output == autoregressive(model, request_of(text, 24))
    for number, step in enumerate(steps):
        assert step["behind"] == sum(len(earlier["tokens"]) for earlier in steps[:number])
        chosen = [token for token, _ in step["candidates"]][: step["accepted"]]
        assert step["tokens"][: step["accepted"]] == chosen
    accepted = sum(step["accepted"] for step in steps)
    assert (accepted > 0) == (decoding == "card")
    assert any("nodes" in event for event in events) == (decoding == "card")


def test_trees_told_as_changes_are_those_that_the_draft_published(pool: Pool) -> None:
    card, draft = pool.card_slot(0), pool.draft_slot(0)
    card.open(request_of([5, 6, 7], 32), session_id := pool.new_session_id())
    trace = Trace(card, session_id, 100, 3, 0)
    assert trace.look(1000) == []
    draft.replace(session_id, 3, [4], [-1], [-0.5])
    assert trace.look(2000) == [{"us": 2, "behind": 0, "known": 0, "nodes": [[4, -1, -0.5]]}]
    assert trace.look(3000) == []
    draft.append([8, 9], [0, 1], [-0.75, -float("inf")], passes=1)
    grown = {"us": 4, "behind": 0, "known": 1, "nodes": [[8, 0, -0.75], [9, 1, -9999.0]]}
    assert trace.look(4000) == [grown]
    draft.replace(session_id, 5, [9], [-1], [-0.25])
    assert trace.look(5000) == [{"us": 5, "behind": 2, "known": 0, "nodes": [[9, -1, -0.25]]}]


async def test_a_delta_carries_what_happened_since_the_last_one(pool: Pool) -> None:
    scene = Scene(pool)
    client, slot = await scene.open(return_trace=True)
    target = pool.target_slot(slot)
    for tokens, finish in (([3, 4], Finish.RUNNING), ([5] * 6, Finish.LENGTH)):
        target.adopt(target.session_id)
        target.trace(Step(Candidates.chain(tokens, []), 1, 1, len(tokens)))
        scene.target.commit(slot, tokens, finish)
        scene.follower.tick(1)
    first, last = (json.loads(delta.details)["trace"] for delta in client.sent)
    assert [event["tokens"] for event in (*first, *last)] == [[3, 4], [5] * 6]
