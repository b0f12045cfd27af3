"""How often the draft, reading the target's text, would have picked the target's token."""

from __future__ import annotations

import numpy as np

from bench.in_process import parameters_of
from bench.measurement import Task
from card.engines import Engine, Rows
from card.sampling import rank_candidates
from training.agreement import Ranks

_CHUNK = 32


def ranks_of(draft: Engine, task: Task, tokens: tuple[int, ...]) -> Ranks:
    """The draft's rank, int64 [tokens], of every token that the target wrote: 0 is its choice.

    The very engine that drafts reads the very text that was measured, with the noise of its seed.
    """
    parameters, prompt = parameters_of(task), task.prompt.tokens
    ids = np.arange(draft.vocabulary)[None]
    chosen = np.array(tokens)
    read = [*prompt, *tokens[:-1]]
    behind = len(prompt) - 1
    ranks = []
    session = draft.open_session()
    for start in range(0, len(read), _CHUNK):
        chunk = read[start : start + _CHUNK]
        logits = draft.forward([Rows(session, chunk)])[0]
        draft.keep(session, range(len(chunk)))
        for row in range(max(0, behind - start), len(chunk)):
            place = start + row - behind
            scores = rank_candidates(
                ids,
                logits.row(row)[None],
                np.zeros(1, np.float32),
                np.array([len(prompt) + place]),
                parameters,
            )[0]
            own = scores[chosen[place]]
            ties_before = (scores[: chosen[place]] == own).sum()
            ranks.append((scores > own).sum() + ties_before)
    draft.close_session(session)
    return np.array(ranks, np.int64)
