"""A head drafts on the target's hidden states; whatever these hold, texts are the target's own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from differential import Way, every_pair, name_of
from fake_engine import FakeEngine, FakeModel
from hypothesis import given, settings
from hypothesis import strategies as st
from one_process import GREEDY, OneProcess, autoregressive, request_of, settings_of
from small_heads import TAPPED, random_head

from card.cache import SlotRequest
from card.engines import Logits, SequenceTokens
from card.sampling import SamplingParameters
from card.speculation.drafters import DRAFTERS, DraftConfig, DraftedSession, Drafter
from card.speculation.drafters.heads.formats import CTC, EAGLE3, KINDS, SPECFORMER
from card.speculation.drafters.interface import GrowingTree, Nodes

PLACES = 16
MODEL = FakeModel()
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
SAMPLED = SamplingParameters(temperature=0.8, seed=3)
NAN = 0x7FC0


class TappedEngine(FakeEngine):
    """Its states are random numbers, NaN, or those of another text."""

    def __init__(self, kind: str) -> None:
        super().__init__(MODEL, tree=False)
        self._kind = kind
        self._random = np.random.default_rng(1)

    def forward(self, batch: Sequence[SequenceTokens], *, alone: bool = False) -> list[Logits]:
        found = super().forward(batch, alone=alone)
        for rows, logits in zip(batch, found, strict=True):
            values = self._random.standard_normal((len(rows.tokens), TAPPED), np.float32)
            states = (values.view(np.uint32) >> 16).astype(np.uint16)
            if self._kind == "not finite":
                states[self._random.random(states.shape) < 0.1] = NAN
            logits.states = states  # type: ignore[misc]
        return found


AXES = {
    "kind": list(KINDS),
    "fault": [
        *("random", "not finite", "overwritten", "of another text", "no states", "killed draft"),
    ],
    "sampling": ["greedy", "sampled"],
}


@pytest.mark.parametrize("way", list(every_pair(AXES)), ids=name_of)
def test_texts_are_the_targets_own_whatever_happens_to_states_and_draft(way: Way) -> None:
    kind, fault = way["kind"], way["fault"]
    parameters = GREEDY if way["sampling"] == "greedy" else SAMPLED
    ring = {"no states": (0, 0), "overwritten": (1, TAPPED)}.get(fault, (PLACES, TAPPED))
    requests = [
        request_of(PROMPT * (1 + at), 24, decoding, parameters, gamma=3)
        for at, decoding in enumerate(("card", "draft_then_verify", "ssd"))
    ]
    chosen = settings_of(drafter=kind, query="subtree")
    heads = [random_head(MODEL.vocabulary, mask_id=2, kind=kind) for _ in range(2)]
    steps = itertools.count()
    with OneProcess(TappedEngine(fault), heads[0], chosen, states=ring) as both:
        streams = [both.open(request, index) for index, request in enumerate(requests)]

        def disturb() -> None:
            """The slots' states change places; the draft dies, and another one comes."""
            step = next(steps)
            if fault == "of another text":
                ring = both.pool.slots["states"]
                ring[[0, 1]] = ring[[1, 0]]
            if fault == "killed draft" and step == 8:
                both.kill_draft()
            if fault == "killed draft" and step == 16:
                both.restart_draft(heads[1])
                both.revive_draft()

        outputs = both.run(streams, between=disturb)
        assert outputs == [autoregressive(MODEL, request) for request in requests]
        drafts = sum(stream.counters.layers for stream in streams)
        reads_states_alone = kind in (SPECFORMER, CTC) and fault == "no states"
        assert drafts == 0 if reads_states_alone else drafts > 5
        both.close(streams)


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_texts_are_the_targets_own_when_the_ring_is_scribbled_over(seed: int, steps: int) -> None:
    random = np.random.default_rng(seed)
    request = request_of(PROMPT, 16)
    chosen = settings_of(drafter="eagle3")
    with OneProcess(
        TappedEngine("random"),
        random_head(MODEL.vocabulary),
        chosen,
        states=(PLACES, TAPPED),
    ) as both:
        stream = both.open(request)

        def scribble() -> None:
            slots = both.pool.slots
            slots["states"][0] = random.integers(-(2**63), 2**63, slots["states"][0].shape)
            name = random.choice(["turn", "session_id", "first", "claimed", "end"])
            slots[f"states_{name}"][0] = random.integers(-5, 40)

        assert both.run([stream], draft_steps=steps, between=scribble) == [
            autoregressive(MODEL, request)
        ]


class Scene:
    """A drafter with one session, and states that the test publishes."""

    def __init__(self, kind: str = EAGLE3, **config: Any) -> None:
        self.engine = random_head(MODEL.vocabulary, mask_id=2, kind=kind)
        chosen = DraftConfig(ngram_tokens=0, **config)
        self.drafter: Drafter = DRAFTERS[kind](self.engine, chosen)
        request = SlotRequest(np.array(PROMPT, np.int64), 100, "card", GREEDY, 4)
        self.session = DraftedSession(0, request, [*PROMPT], GrowingTree(64), states=self.read)
        self.published = 0
        self.drafter.open(self.session)

    def read(self, start: int) -> tuple[int, Any]:
        states = np.arange(self.published * TAPPED).reshape(-1, TAPPED) % 97 + 0x3F00
        return start, states.astype(np.uint16)[start:]

    def propose(self) -> Nodes | None:
        (nodes,) = self.drafter.propose([self.session])
        if nodes is not None:
            if nodes.replaces:
                self.session.tree.clear()
            self.session.tree.add(nodes)
        return nodes

    def commit(self, tokens: list[int]) -> None:
        self.session.tokens += tokens
        self.drafter.commit(self.session, self.session.tree.re_root(tokens))


def test_prompt_is_read_only_as_far_as_its_states_have_come_before_the_first_commit() -> None:
    scene = Scene()
    scene.propose()  # the first token needs no states
    nodes = scene.propose()
    assert nodes is not None
    assert nodes.waits
    scene.published = 6
    nodes = scene.propose()
    assert nodes is not None
    assert not nodes.waits
    assert scene.engine.length(0) == 7
    scene.published = len(PROMPT)
    scene.commit([5])
    scene.propose()
    assert scene.engine.length(0) == len(PROMPT) + 1
    assert len(scene.session.tree) > 0


def test_tree_is_replaced_by_one_from_true_states_when_a_commit_leaves_some_of_it() -> None:
    scene = Scene()
    scene.published = len(PROMPT)
    scene.commit([5])
    for _ in range(4):
        scene.propose()
    tree = scene.session.tree
    path = [tree.token[0]]
    scene.published += 2
    scene.commit(path)
    assert len(tree) > 0  # what the target may still use
    nodes = scene.propose()
    assert nodes is not None
    assert nodes.replaces
    fresh = Scene()
    fresh.published = scene.published
    fresh.session.tokens += [5]
    fresh.commit(path)
    expected = fresh.propose()
    assert expected is not None
    assert tree.token == list(expected.tokens)
    np.testing.assert_allclose(nodes.logprobs, expected.logprobs, atol=1e-5)


@pytest.mark.parametrize("kind", [CTC, SPECFORMER])
def test_head_on_states_alone_drafts_nothing_when_they_are_too_old(kind: str) -> None:
    scene = Scene(kind, mask_ids=(2,), block=4)
    scene.published = len(PROMPT) - 4
    scene.commit([5, 7])
    assert scene.propose() == Nodes(passes=0)  # reads the text
    assert scene.propose() is None
    scene.published = len(PROMPT)
    scene.commit([6])
    assert scene.propose() is not None
    assert len(scene.session.tree) > 0
