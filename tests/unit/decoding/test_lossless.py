"""Lossless: the text is the target's, whatever the cache holds and whichever process runs when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from differential import (
    AXES,
    EVENTS,
    FAULTS,
    GUIDES,
    SAMPLINGS,
    ReadyGuides,
    Scene,
    Way,
    every_pair,
    name_of,
    request_like,
    speculation_of,
)
from fake_engine import FakeEngine, FakeModel
from hypothesis import given, settings
from hypothesis import strategies as st
from letters import END, LETTERS
from one_process import OneProcess, autoregressive, request_of, settings_of

from card.cache import ANY, NO_SALT, SALT_BYTES, SlotRequest, digest_of
from card.engines import Engine
from card.speculation.drafters.growth import GROWTHS
from card.speculation.drafters.remote import REMOTE
from card.speculation.pacing import PACINGS
from card.speculation.sources import SHAPES, WITHOUT_DRAFT

TARGET = FakeModel(LETTERS.vocabulary)
PROMPTS = ([1, 2, 3, 1, 2], [7, 7, 4])


def played(
    requests: Sequence[SlotRequest],
    speculation: dict[str, Any],
    events: Sequence[str],
    *,
    agreement: float = 0.8,
    runs_ahead: bool = True,
    seed: int = 0,
    **then: Sequence[str],
) -> None:
    def started(role: str) -> Engine:
        if role == "target":
            target = FakeEngine(TARGET, tree=False)
            target.row_costs_ms = {1: 1.0, 4: 1.1, 16: 1.4}  # `control: measured` needs costs
            return target
        draft = FakeEngine(replace(TARGET, agreement=agreement), tree=True)
        draft.runs_ahead = runs_ahead
        return draft

    config = settings_of(nodes=64, **speculation)
    plain = [autoregressive(TARGET, request, LETTERS) for request in requests]
    guides = ReadyGuides(lambda: LETTERS)
    with OneProcess(started("target"), started("draft"), config, guides) as both:
        Scene(both, requests, plain, started, seed).play(events, **then)


@pytest.mark.parametrize("way", list(every_pair(AXES)), ids=name_of)
def test_text_when_any_two_choices_meet_equals_plain_decoding(way: Way) -> None:
    requests = [request_like(way, prompt, 40, (END,)) for prompt in PROMPTS]
    played(requests, speculation_of(way), FAULTS[way["fault"]])


@st.composite
def requests_of_any_kind(draw: st.DrawFn) -> SlotRequest:
    tokens = st.integers(0, LETTERS.vocabulary - 1)
    guide = draw(st.sampled_from([None, None, *GUIDES.values()]))
    parameters = draw(st.sampled_from(list(SAMPLINGS.values())))
    request = request_of(
        draw(st.lists(tokens, min_size=1, max_size=20)),
        draw(st.integers(1, 24)),
        draw(st.sampled_from(list(PACINGS))),
        parameters if guide is None else replace(parameters, end_ids=(END,)),
        draw(st.integers(1, 7)),
    )
    request = replace(
        request,
        guide=guide,
        growth=draw(st.sampled_from([ANY, *GROWTHS])),
        salt=draw(st.sampled_from([NO_SALT, b"a" * SALT_BYTES, b"b" * SALT_BYTES])),
        drafter=draw(st.sampled_from([ANY, *WITHOUT_DRAFT, REMOTE])),
        proposes=draw(st.booleans()),
        prediction=np.array(draw(st.lists(tokens, max_size=20)), np.int64),
    )
    if request.drafter != REMOTE:
        return request
    # A pacing that waits for a device waits by the clock.
    return replace(request, pacing="card", draft_key_digest=digest_of("k" * 32))


SPECULATIONS = st.fixed_dictionaries(
    {
        "drafter": st.sampled_from(AXES["drafter"]),
        "proposals": st.sampled_from(WITHOUT_DRAFT),
        "shared_ngrams": st.booleans(),
        "growth": st.sampled_from(list(GROWTHS)),
        "siblings": st.lists(st.integers(1, 5), min_size=1, max_size=5),
        "fan_out": st.integers(1, 4),
        "doubt": st.sampled_from([0.0, 0.3, 0.9]),
        "shared_tokens": st.integers(1, 2),
        "query": st.sampled_from(list(SHAPES)),
        "width": st.integers(1, 6),
        "depth": st.integers(1, 12),
        "rows": st.one_of(st.integers(1, 12), st.just("auto")),
        "branches": st.integers(1, 4),
        "ngram_tokens": st.sampled_from([0, 1, 4]),
        "parcel": st.integers(1, 5),
    }
)


@settings(max_examples=120)
@given(
    requests=st.lists(requests_of_any_kind(), min_size=1, max_size=4),
    speculation=SPECULATIONS,
    events=st.lists(st.sampled_from(list(EVENTS) + ["draft", "target"] * 4), max_size=60),
    then=st.sampled_from([["draft"] * steps + ["target"] for steps in (0, 1, 2, 4)]),
    agreement=st.sampled_from([0.0, 0.6, 0.9, 1.0]),
    runs_ahead=st.booleans(),
    seed=st.integers(0, 1 << 32),
)
def test_text_when_anything_happens_equals_plain_decoding(
    requests: list[SlotRequest], events: list[str], then: list[str], **drawn: Any
) -> None:
    end = ["kill draft"] if "draft" not in then else []
    played(requests, events=[*events, *end], then=then, **drawn)


LOOSE = {axis: AXES[axis] for axis in ("drafter", "pacing", "query", "growth")}
LOOSE["sampling"] = ["greedy", "drawn"]


@pytest.mark.parametrize("way", list(every_pair(LOOSE)), ids=name_of)
def test_foreign_tokens_when_rule_is_loose_are_counted(way: Way) -> None:
    way = way | {"proposals": "ngram", "control": "fixed", "size": "usual", "guide": "none"}
    config = settings_of(**speculation_of(way), loose_entropy=0.0, loose_window=1)
    request = request_like(way, PROMPTS[0], 40, ())
    draft = FakeEngine(replace(TARGET, agreement=0.8), tree=True)
    with OneProcess(FakeEngine(TARGET, tree=False), draft, config) as both:
        stream = both.open(replace(request, acceptance="loose"))
        (text,) = both.run([stream])
        foreign = stream.counters.foreign
    if way["sampling"] == "drawn":  # the rule keeps mismatches of greedy texts alone
        assert (text, foreign) == (autoregressive(TARGET, request), 0)
        return
    whole = [*request.prompt.tolist(), *text]
    own = [int(TARGET.row_after(whole[:end]).argmax()) for end in range(-len(text), 0)]
    others = [place for place, token in enumerate(text) if token != own[place]]
    assert foreign == len(others)
    assert not {place + 1 for place in others} & {*others, len(text)}, "the window holds"
