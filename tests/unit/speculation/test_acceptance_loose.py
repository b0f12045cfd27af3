"""Loose acceptance: what it keeps that the target would not have chosen, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine, FakeLogits, FakeModel
from one_process import GREEDY, OneProcess, autoregressive, request_of, settings_of

from card.cache import ROOT, Candidates
from card.sampling import History, SamplingParameters
from card.speculation.acceptance import RULES, AcceptanceConfig, VerifyResult
from card.speculation.acceptance.loose import normalised_entropy

SURE, UNSURE = 20.0, 0.1
"""What a row's best logit is above all others."""
VOCABULARY = 8


def verified(
    choices: list[int],
    leads: list[float],
    candidates: list[int],
    window: int,
    parameters: SamplingParameters = GREEDY,
) -> tuple[VerifyResult, History]:
    """A chain is verified by a target whose row i chooses choices[i] with a lead of leads[i]."""
    rows = np.zeros((len(choices), VOCABULARY), np.float32)
    rows[np.arange(len(choices)), choices] = leads
    request = request_of([0], 20, parameters=parameters)
    history = History(request.prompt, 21)
    chain = Candidates(candidates, list(range(ROOT, len(candidates) - 1)))
    rule = RULES["loose"](AcceptanceConfig(loose_entropy=0.3, loose_window=window))
    return rule.verify(FakeLogits(rows), chain, history, request), history


def test_where_the_target_is_unsure_and_agrees_again_a_mismatch_is_kept() -> None:
    result, history = verified([1, 2, 3, 4, 5], [UNSURE] * 5, [1, 7, 3, 4], window=2)
    assert result.tokens == [1, 7, 3, 4, 5]
    assert result.accepted == [True] * 4 + [False]
    assert (result.foreign, result.rejected) == (1, False)
    assert result.rows == [0, 1, 2, 3, 4]
    assert history.tokens.tolist() == [0, 1, 7, 3, 4, 5]


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
    ],
)
def test_a_mismatch_that_fails_is_corrected_and_nothing_behind_it_is_kept(
    leads: list[float], candidates: list[int], window: int, parameters: dict[str, Any]
) -> None:
    how = replace(GREEDY, **parameters)
    result, history = verified([1, 2, 3, 4, 5], leads, candidates, window, how)
    assert result.tokens == [1, 2]
    assert (result.foreign, result.rejected) == (0, True)
    assert history.tokens.tolist() == [0, 1, 2]


def test_what_is_kept_counts_for_penalties_as_text() -> None:
    """The choice behind a kept token is the target's for that very history, not for its own."""
    how = replace(GREEDY, presence_penalty=5.0)
    # Row 2 would choose 7 again, had 7 not just been kept.
    result, _ = verified(
        [1, 2, 7, 4, 5], [UNSURE, UNSURE, 2.0, UNSURE, UNSURE], [1, 7, 7, 4], 1, how
    )
    assert result.tokens == [1, 2]


def test_a_drawn_text_is_exact() -> None:
    model, drawn = FakeModel(agreement=1.0), SamplingParameters(temperature=0.8, seed=3)
    request = replace(request_of([1, 2], 24, parameters=drawn), acceptance="loose")
    with OneProcess(
        FakeEngine(model, tree=False),
        FakeEngine(FakeModel(agreement=0.8), tree=True),
        settings_of(loose_window=0, loose_entropy=0.0),
    ) as both:
        stream = both.open(request)
        assert both.run([stream], draft_steps=4) == [autoregressive(model, request)]
        assert stream.counters.foreign == 0


def test_a_greedy_text_says_how_many_of_its_tokens_are_not_the_targets() -> None:
    model = FakeModel(agreement=1.0)
    request = replace(request_of([1, 2], 40), acceptance="loose")
    with OneProcess(
        FakeEngine(model, tree=False),
        FakeEngine(FakeModel(agreement=0.8), tree=True),
        settings_of(loose_window=1, loose_entropy=0.3),
    ) as both:
        stream = both.open(request)
        (text,) = both.run([stream], draft_steps=4)
    prompt = request.prompt.tolist()
    own = [int(model.row_after([*prompt, *text[:at]]).argmax()) for at in range(len(text))]
    foreign = sum(token != choice for token, choice in zip(text, own, strict=True))
    assert stream.counters.foreign == foreign > 0


def test_entropy_is_a_share_of_the_largest_there_can_be() -> None:
    assert normalised_entropy(np.zeros(50, np.float32)) == pytest.approx(1.0)
    sure = np.full(50, -np.inf, np.float32)
    sure[3] = 1.0
    assert normalised_entropy(sure) == pytest.approx(0.0)
    sure[4] = 1.0
    assert normalised_entropy(sure) == pytest.approx(np.log(2) / np.log(50))
