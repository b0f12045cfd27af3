"""Exact acceptance: whatever the candidates, what is committed is what the target alone writes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fake_engine import FakeLogits, FakeModel
from hypothesis import given
from hypothesis import strategies as st
from one_process import GREEDY, autoregressive, request_of

from card.cache import NO_CANDIDATES, ROOT, Candidates, Finish, SlotRequest
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


@given(
    candidate_trees(),
    st.sampled_from([GREEDY, SAMPLED, CONSTRAINED]),
    st.integers(0, 6),
)
def test_it_commits_what_autoregressive_decoding_would(
    candidates: Candidates, parameters: SamplingParameters, before: int
) -> None:
    request = request_of(PROMPT, 10, parameters=parameters)
    alone = autoregressive(MODEL, request)
    before = min(before, len(alone) - 1)
    result, history = verify(candidates, request, alone[:before])
    count = len(result.tokens)
    assert result.tokens == alone[before : before + count]
    assert history.tokens.tolist() == [*PROMPT, *alone[: before + count]]
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


@given(st.integers(0, 9), st.integers(0, 9), st.sampled_from([GREEDY, SAMPLED]))
def test_right_candidates_are_accepted_up_to_the_first_wrong_one(
    right: int, wrong: int, parameters: SamplingParameters
) -> None:
    alone = autoregressive(MODEL, request_of(PROMPT, 24, parameters=parameters))
    tokens = alone[:right] + [(token + 1) % 5 for token in alone[right : right + wrong]]
    chain = Candidates(tokens, list(range(ROOT, len(tokens) - 1)))
    result, _ = verify(chain, request_of(PROMPT, 24, parameters=parameters), [])
    assert result.num_accepted == right
    assert result.tokens == alone[: right + 1]
    assert result.rows == list(range(right + 1))


def test_among_siblings_verification_steps_into_the_chosen_one() -> None:
    one, two, three = autoregressive(MODEL, request_of(PROMPT, 3))
    other = (one + 1) % 5
    #         root: other, one; below other: two; below one: other, two; below that: three
    candidates = Candidates([other, one, two, other, two, three], [ROOT, ROOT, 0, 1, 1, 4])
    result, _ = verify(candidates, request_of(PROMPT, 9), [])
    assert result.rows == [0, 2, 5, 6]
    assert result.tokens[:3] == [one, two, three]
    assert result.accepted == [True, True, True, False]


def test_without_candidates_one_token_is_decoded() -> None:
    result, _ = verify(NO_CANDIDATES, request_of(PROMPT, 9), [])
    assert result.tokens == autoregressive(MODEL, request_of(PROMPT, 1))
    assert (result.rows, result.accepted) == ([0], [False])


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_nothing_is_committed_beyond_the_output_limit(limit: int) -> None:
    alone = autoregressive(MODEL, request_of(PROMPT, 6))
    chain = Candidates(alone, list(range(ROOT, 5)))
    result, _ = verify(chain, request_of(PROMPT, limit), [])
    assert result.tokens == alone[:limit]
    assert result.finish is Finish.LENGTH


def test_nothing_is_committed_behind_the_end() -> None:
    alone = autoregressive(MODEL, request_of(PROMPT, 6))
    end = alone[2]
    assert end not in alone[:2]
    chain = Candidates(alone, list(range(ROOT, 5)))
    result, _ = verify(chain, request_of(PROMPT, 6, parameters=replace(GREEDY, end_ids=(end,))), [])
    assert result.tokens == alone[:3]
    assert result.finish is Finish.END_ID


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
