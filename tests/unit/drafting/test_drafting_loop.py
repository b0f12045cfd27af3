"""The draft's loop on an engine whose logits betray every wrong KV entry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine, FakeModel, fake
from hypothesis import given, settings
from hypothesis import strategies as st
from one_process import (
    GREEDY,
    OneProcess,
    Stream,
    autoregressive,
    request_of,
    settings_of,
)

from card.cache import ROOT, Finish, TargetSlot, Tree
from card.sampling import History, SamplingParameters, rank_candidates, sample

MODEL = FakeModel()
PROMPT = [3, 1, 4, 1, 5, 3, 1]
OUTPUT = 14
"""Tokens that a session of the properties below may write: few, so that its end is often near."""
SAMPLED = SamplingParameters(temperature=0.8, seed=99)
FILTERED = SamplingParameters(temperature=0.8, seed=99, top_k=6, top_p=0.9)


@contextmanager
def drafting(**speculation: Any) -> Iterator[OneProcess]:
    target = FakeEngine(MODEL, tree=False)
    with OneProcess(target, FakeEngine(MODEL, tree=True), settings_of(**speculation)) as both:
        yield both


def adopted(both: OneProcess, stream: Stream) -> TargetSlot:
    """The target's hand on the slot, moved by the test."""
    slot = both.pool.target_slot(stream.slot.index)
    slot.adopt(stream.session_id)
    return slot


def commit(slot: TargetSlot, tokens: list[int]) -> None:
    slot.commit(tokens, [False] * len(tokens), [0.0] * len(tokens), Finish.RUNNING)


def paths_of(tree: Tree) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.token, tree.parent, strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
    return paths


def fresh_log_probabilities(text: list[int], parameters: SamplingParameters) -> dict[int, float]:
    """What the draft would think of every token behind `text`, read afresh."""
    row = MODEL.row_after(text).astype(np.float64)
    logits = (row - np.log(np.exp(row).sum())).astype(np.float32)
    ids = np.arange(MODEL.vocabulary)[None]
    normaliser, position = np.zeros(1, np.float32), np.array([len(text)])
    (ranked,) = rank_candidates(ids, logits[None], normaliser, position, parameters)
    believed = ranked.astype(np.float64)
    return dict(enumerate((believed - np.log(np.exp(believed).sum())).tolist()))


def assert_read_correctly(tree: Tree, text: list[int], parameters: SamplingParameters) -> None:
    """Every node has the score that a draft without any cache would give its path."""
    assert tree.root_length == len(text)
    paths = paths_of(tree)
    assert len(set(paths)) == len(paths)
    known: dict[tuple[int, ...], dict[int, float]] = {}
    score_of = {(): 0.0, **dict(zip(paths, tree.score, strict=True))}
    for path, score in zip(paths, tree.score, strict=True):
        above = path[:-1]
        if above not in known:
            known[above] = fresh_log_probabilities([*text, *above], parameters)
        assert score == pytest.approx(score_of[above] + known[above][path[-1]], abs=1e-4)


scripts = st.lists(
    st.one_of(
        st.integers(1, 5),  # passes
        st.tuples(st.integers(0, 40), st.integers(1, 5)),  # commit along the tree
        st.lists(st.integers(0, 23), min_size=1, max_size=3),  # commit what the target likes
    ),
    min_size=1,
    max_size=10,
)
growths = st.sampled_from(["best_first", "layered"])


@settings(max_examples=50)
@given(
    scripts,
    growths,
    st.integers(1, 7),
    st.integers(1, 9),
    st.sampled_from([64, 128]),
    st.sampled_from([0, 3]),
    st.sampled_from([GREEDY, SAMPLED, FILTERED]),
    st.integers(0, 1000),
)
def test_published_trees_equal_those_of_a_draft_that_reads_everything_afresh(
    script: list[int | tuple[int, int] | list[int]],
    growth: str,
    width: int,
    depth: int,
    nodes: int,
    ngram_tokens: int,
    parameters: SamplingParameters,
    seed: int,
) -> None:
    """Also after any number of re-roots: no KV entry of a pruned branch is ever used again."""
    parameters = replace(parameters, seed=seed)
    config = {"growth": growth, "width": width, "depth": depth, "ngram_tokens": ngram_tokens}
    with drafting(nodes=nodes, **config) as both:
        stream = both.open(request_of(PROMPT, OUTPUT, parameters=parameters))
        slot = adopted(both, stream)
        text = list(PROMPT)
        both.draft.step()
        for action in script:
            tree = slot.tree(stream.session_id, MODEL.vocabulary)
            assert tree is not None
            before = set(paths_of(tree))
            new: list[int] = []
            if isinstance(action, int):
                for _ in range(action):
                    both.draft.step()
            else:
                if isinstance(action, list):
                    new = action
                elif before:
                    new = list(sorted(before)[action[0] % len(before)][: action[1]])
                new = new[: len(PROMPT) + OUTPUT - 1 - len(text)]
                commit(slot, new)
                text += new
                both.draft.step()
            tree = slot.tree(stream.session_id, MODEL.vocabulary)
            assert tree is not None
            assert_read_correctly(tree, text, parameters)
            after = set(paths_of(tree))
            assert len(after) <= nodes
            left = len(PROMPT) + OUTPUT - len(text)
            assert all(len(path) <= max(1, min(depth, left)) for path in after)
            survivors = {path[len(new) :] for path in before if path[: len(new)] == tuple(new)}
            assert survivors - {()} <= after
        read = fake(both.draft_engine).read
        if not ngram_tokens:
            assert len(set(read)) == len(read), "what the KV cache holds is never forwarded again"


@settings(max_examples=40)
@given(
    growths,
    st.integers(1, 6),
    st.integers(0, (1 << 64) - 1),
    st.sampled_from([0.0, 0.2, 0.8, 1.5]),
    st.sampled_from([(0, 0.0, 0.0), (5, 0.0, 0.0), (0, 0.8, 0.0), (6, 0.9, 0.0), (0, 0.0, 0.2)]),
    st.sampled_from([(), ((3, 2.0), (5, -3.0))]),
)
def test_a_draft_equal_to_the_target_ranks_the_targets_choice_first(
    growth: str,
    width: int,
    seed: int,
    temperature: float,
    filters: tuple[int, float, float],
    bias: tuple[tuple[int, float], ...],
) -> None:
    """Both perturb with the same noise: same seed, same position, same token id."""
    parameters = SamplingParameters(temperature, *filters, seed=seed, logit_bias=bias)
    with drafting(growth=growth, width=width, depth=6) as both:
        stream = both.open(request_of(PROMPT, 20, parameters=parameters))
        slot = adopted(both, stream)
        for _ in range(6):
            both.draft.step()
        commit(slot, autoregressive(MODEL, request_of(PROMPT, 2, parameters=parameters)))
        both.draft.step()
        tree = slot.tree(stream.session_id, MODEL.vocabulary)
        assert tree is not None
        text = [*PROMPT, *stream.output]
        paths = paths_of(tree)
        for node in [ROOT, *range(len(paths))]:
            children = [child for child, above in enumerate(tree.parent) if above == node]
            if not children:
                continue
            history = History([*text, *(paths[node] if node != ROOT else ())], 64)
            choice = sample(MODEL.row_after(history.tokens), history, parameters)
            assert tree.token[max(children, key=lambda child: tree.score[child])] == choice


def test_a_reloaded_draft_starts_at_what_is_committed() -> None:
    with drafting() as both:
        stream = both.open(request_of(PROMPT, 20))
        slot = adopted(both, stream)
        both.draft.step()
        commit(slot, [9, 8, 7])
        both.restart_draft(FakeEngine(MODEL, tree=True))
        for _ in range(3):
            both.draft.step()
        tree = slot.tree(stream.session_id, MODEL.vocabulary)
        assert tree is not None
        assert_read_correctly(tree, [*PROMPT, 9, 8, 7], GREEDY)


def test_proposals_never_make_a_pass_larger_than_a_chunk() -> None:
    """An engine holds so many rows of a session and no more: one row above would end it."""
    chunk = 8
    for length in range(chunk - 2, 2 * chunk + 2):
        target = FakeEngine(FakeModel(), tree=False)
        draft = FakeEngine(FakeModel(), tree=True)
        settings = settings_of(prefill_chunk=chunk, ngram_tokens=6)
        with OneProcess(target, draft, settings) as both:
            both.open(request_of([7, 8] * (length // 2) + [7] * (length % 2), 30))
            for _ in range(5):
                both.draft.step()
            passes = [rows for batch in draft.batches for rows in batch]
            text = [len(rows.tokens) for rows in passes if rows.parents is None]
            assert max(text) <= chunk, f"a prompt of {length} tokens"
            assert sum(text) >= length
            assert sum(text) > length or length % chunk == 0, "proposals fill what is left"
