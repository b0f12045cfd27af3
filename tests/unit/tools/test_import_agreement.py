"""How often a draft that reads along would have chosen what the target wrote."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from fake_engine import FakeEngine, FakeModel
from one_process import autoregressive, request_of

from bench.in_process import parameters_of
from bench.measurement import Task
from bench.prompts import Prompt
from card.sampling import rank_candidates
from importing.agreement import ranks_along, share_within
from writing import write_alone

MODEL = FakeModel()
TASK = Task(Prompt("a", "", (3, 1, 4, 1, 5)), 0.0, 11, 40)
SAMPLED = Task(Prompt("a", "", (3, 1, 4, 1, 5)), 0.8, 11, 40)


def text_alone(task: Task) -> tuple[int, ...]:
    request = request_of(task.prompt.tokens, task.max_tokens, parameters=parameters_of(task))
    return tuple(autoregressive(MODEL, request))


@pytest.mark.parametrize("task", [TASK, SAMPLED], ids=["greedy", "sampled"])
def test_rank_is_0_where_the_draft_would_choose_the_same_id(task: Task) -> None:
    draft = FakeModel(seed=5)
    tokens = text_alone(task)
    text = [*task.prompt.tokens, *tokens]
    ids = np.arange(draft.vocabulary)[None]
    expected = []
    for at in range(len(task.prompt.tokens), len(text)):
        scores = rank_candidates(
            ids,
            draft.row_after(text[:at])[None],
            np.zeros(1, np.float32),
            np.array([at]),
            parameters_of(task),
        )[0]
        expected.append(bool(scores.argmax() != text[at]))
    engine = FakeEngine(draft, tree=True)
    found = ranks_along(engine, task.prompt.tokens, tokens, parameters_of(task))
    assert [rank != 0 for rank in found] == expected
    assert any(itertools.chain(expected))


@pytest.mark.parametrize("task", [TASK, SAMPLED], ids=["greedy", "sampled"])
def test_target_writes_its_own_text_when_nothing_drafts(task: Task) -> None:
    engine = FakeEngine(MODEL, tree=False)
    written = write_alone(engine, task.prompt.tokens, parameters_of(task), task.max_tokens)
    assert tuple(written) == text_alone(task)


def test_share_counts_the_tokens_among_the_best_choices() -> None:
    assert share_within([0, 3, None, 0], 1) == 0.5
    assert share_within([0, 3, None, 0], 4) == 0.75
