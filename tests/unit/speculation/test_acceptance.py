"""Acceptance: what exact verification commits, and what the loose one keeps beside it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeLogits, FakeModel
from hypothesis import given
from hypothesis import strategies as st
from one_process import GREEDY, autoregressive, request_of

from card.cache import ROOT, Candidates, Finish, SlotRequest
from card.sampling import History, SamplingParameters, log_probability
from card.speculation.acceptance import RULES, AcceptanceConfig, VerifyResult

MODEL = FakeModel(vocabulary=5)
PROMPT = [2, 0, 1]
SAMPLED = SamplingParameters(temperature=0.8, seed=5)
CONSTRAINED = SamplingParameters(
    temperature=0.8,
    seed=6,
    repetition_penalty=1.5,
    presence_penalty=0.5,
    frequency_penalty=0.3,
    min_tokens=3,
    bad_words=((1, 2), (3,)),
    end_ids=(4, 3),
)


def path_to(candidates: Candidates, index: int) -> list[int]:
    path: list[int] = []
    while index != ROOT:
        path.insert(0, candidates.tokens[index])
        index = candidates.parents[index]
    return path


def verify(
    candidates: Candidates, request: SlotRequest, committed: list[int]
) -> tuple[VerifyResult, History]:
    """One pass of the target over `candidates` behind what is committed."""
    text = [*request.prompt.tolist(), *committed]
    history = History(request.prompt, len(request.prompt) + request.max_tokens)
    for token in committed:
        history.append(token)
    nodes = range(ROOT, len(candidates))
    rows = [MODEL.row_after([*text, *path_to(candidates, node)]) for node in nodes]
    logits = FakeLogits(np.array(rows))
    return RULES["exact"](AcceptanceConfig()).verify(logits, candidates, history, request), history


@st.composite
def candidate_trees(draw: st.DrawFn) -> Candidates:
    count = draw(st.integers(0, 12))
    return Candidates(
        draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)),
        [draw(st.integers(ROOT, index - 1)) for index in range(count)],
    )


@given(candidate_trees(), st.sampled_from([GREEDY, SAMPLED, CONSTRAINED]), st.integers(0, 6))
def test_it_commits_what_autoregressive_decoding_would(
    candidates: Candidates, parameters: SamplingParameters, before: int
) -> None:
    request = request_of(PROMPT, 10, parameters=parameters)
    alone = autoregressive(MODEL, request)
    before = min(before, len(alone) - 1)
    result, history = verify(candidates, request, alone[:before])
    count = len(result.tokens)
    assert result.tokens == alone[before : before + count]
    assert history.tokens == [*PROMPT, *alone[: before + count]]
    assert result.num_accepted == sum(result.accepted)
    ended = before + count == len(alone)
    assert (result.finish is not Finish.RUNNING) == ended
    assert len(result.rows) == len(result.accepted) == len(result.log_probabilities) == count
    # The rows spell the committed path, from the row of the last committed token on.
    nodes = [row - 1 for row in result.rows]
    assert nodes[0] == ROOT
    for at, node in enumerate(nodes):
        assert path_to(candidates, node) == result.tokens[:at]
        if at:
            assert candidates.parents[node] == nodes[at - 1]
    assert result.accepted[:-1] == [True] * (count - 1)
    were_wrong = not result.accepted[-1] and nodes[-1] in candidates.parents
    assert result.rejected == were_wrong
    if not ended:
        assert not result.accepted[-1], "verification ends at a correction"
        last = nodes[-1]
        edges = list(zip(candidates.parents, candidates.tokens, strict=True))
        assert (last, result.tokens[-1]) not in edges, "no candidate was left lying"


def test_log_probabilities_are_those_of_the_unprocessed_logits() -> None:
    request = replace(
        request_of(PROMPT, 3, parameters=replace(SAMPLED, repetition_penalty=2.0)),
        log_probabilities=True,
    )
    alone = autoregressive(MODEL, request)
    result, _ = verify(Candidates(alone, [ROOT, 0, 1]), request, [])
    text = [[*PROMPT, *alone[:n]] for n in range(3)]
    expected = [log_probability(MODEL.row_after(t), a) for t, a in zip(text, alone, strict=True)]
    assert result.log_probabilities == expected
    silent, _ = verify(
        Candidates(alone, [ROOT, 0, 1]), replace(request, log_probabilities=False), []
    )
    assert silent.log_probabilities == [0.0] * 3


SURE, UNSURE = 20.0, 0.1
"""What a row's best logit is above all others."""
VOCABULARY = 8


def verified(
    choices: list[int],
    leads: list[float],
    candidates: list[int],
    window: int,
    parameters: SamplingParameters = GREEDY,
    constraint: Any = None,
) -> tuple[VerifyResult, History]:
    """A chain is verified by a target whose row i chooses choices[i] with a lead of leads[i]."""
    rows = np.zeros((len(choices), VOCABULARY), np.float32)
    rows[np.arange(len(choices)), choices] = leads
    request = request_of([0], 20, parameters=parameters)
    history = History(request.prompt, 21)
    chain = Candidates(candidates, list(range(ROOT, len(candidates) - 1)))
    rule = RULES["loose"](AcceptanceConfig(loose_entropy=0.3, loose_window=window))
    return rule.verify(FakeLogits(rows), chain, history, request, constraint), history


def test_where_the_target_is_unsure_and_agrees_again_a_mismatch_is_kept() -> None:
    result, history = verified([1, 2, 3, 4, 5], [UNSURE] * 5, [1, 7, 3, 4], window=2)
    assert result.tokens == [1, 7, 3, 4, 5]
    assert result.accepted == [True] * 4 + [False]
    assert (result.foreign, result.rejected) == (1, False)
    assert result.rows == [0, 1, 2, 3, 4]
    assert history.tokens == [0, 1, 7, 3, 4, 5]


@pytest.mark.parametrize(
    ("leads", "candidates", "window", "parameters"),
    [
        pytest.param([UNSURE, SURE, UNSURE, UNSURE, UNSURE], [1, 7, 3, 4], 2, {}, id="sure"),
        pytest.param([UNSURE] * 5, [1, 7, 3, 6], 2, {}, id="another mismatch in the window"),
        pytest.param([UNSURE] * 5, [1, 7, 3, 4], 3, {}, id="the window is longer than the chain"),
        pytest.param([UNSURE] * 5, [1, 7, 3, 4], 2, {"end_ids": (7,)}, id="it ends the text"),
        pytest.param([UNSURE] * 5, [1, 7, 3, 4], 2, {"end_ids": (2,)}, id="the target ends it"),
        pytest.param([UNSURE] * 5, [1, 7, 3, 4], 2, {"end_ids": (4,)}, id="an end in the window"),
        pytest.param([UNSURE] * 5, [1, 7, 3, 4], 2, {"bad_words": ((7,),)}, id="forbidden"),
        pytest.param(
            [UNSURE] * 5, [1, 7, 3, 4], 2, {"logit_bias": ((7, -100.0),)}, id="a bias against it"
        ),
    ],
)
def test_a_mismatch_that_fails_is_corrected_and_nothing_behind_it_is_kept(
    leads: list[float], candidates: list[int], window: int, parameters: dict[str, Any]
) -> None:
    how = replace(GREEDY, **parameters)
    result, history = verified([1, 2, 3, 4, 5], leads, candidates, window, how)
    assert result.tokens == [1, 2]
    assert (result.foreign, result.rejected) == (0, True)
    assert history.tokens == [0, 1, 2]


def test_what_is_kept_counts_for_penalties_as_text() -> None:
    """The choice behind a kept token is the target's for that very history, not for its own."""
    how = replace(GREEDY, presence_penalty=5.0)
    # Row 2 would choose 7 again, had 7 not just been kept.
    result, _ = verified(
        [1, 2, 7, 4, 5], [UNSURE, UNSURE, 2.0, UNSURE, UNSURE], [1, 7, 7, 4], 1, how
    )
    assert result.tokens == [1, 2]


def test_a_text_that_a_guide_holds_is_exact() -> None:
    everything = np.ones(VOCABULARY, np.bool_)
    guide = SimpleNamespace(allowed=lambda: everything, advance=lambda _: None)
    result, _ = verified([1, 2, 3, 4, 5], [UNSURE] * 5, [1, 7, 3, 4], 2, constraint=guide)
    assert (result.tokens, result.foreign) == ([1, 2], 0)
