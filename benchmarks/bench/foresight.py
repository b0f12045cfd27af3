"""How often the draft, reading the target's text, would have picked the target's token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.contest import Completion
from bench.in_process import parameters_of
from bench.measurement import Task
from card.engines import Engine, Ranking, SequenceTokens
from card.sampling import PositionNoise
from card.speculation.pacing import PLAIN
from training.agreement import Ranks

_CHUNK = 32
_RANKED = 64
"""Of the draft's likeliest ids so many are looked at; behind these a token counts as the next."""


def read_along(draft: Engine, completions: Sequence[Completion]) -> dict[float, list[Ranks]]:
    """The draft's ranks of all texts that the target wrote alone, each once, by temperature."""
    ranks: dict[float, list[Ranks]] = {}
    read: set[Task] = set()
    for completion in completions:
        task, tokens = completion.task, completion.measurement.tokens
        alone = completion.contender.system == PLAIN
        if alone and tokens is not None and task not in read:
            read.add(task)
            ranks.setdefault(task.temperature, []).append(ranks_of(draft, task, tokens))
    return ranks


def ranks_of(draft: Engine, task: Task, tokens: tuple[int, ...]) -> Ranks:
    """The draft's rank, int64 [tokens], of every token that the target wrote: 0 is its choice.

    The very engine that drafts reads the very text that was measured, with the noise of its seed.
    """
    parameters, prompt = parameters_of(task), task.prompt.tokens
    noise = PositionNoise(parameters.seed, draft.vocabulary)
    count = min(_RANKED, draft.vocabulary)
    read = [*prompt, *tokens[:-1]]
    ranks: list[int] = []
    session = draft.open_session()
    for start in range(0, len(read), _CHUNK):
        chunk = read[start : start + _CHUNK]
        # The token behind the row that stands at `place` stands at the next one.
        places = [p for p in range(start + 1, start + len(chunk) + 1) if p >= len(prompt)]
        ranking = Ranking(count)
        if not parameters.is_greedy:
            ranking = Ranking(count, parameters.temperature, noise.rows(places))
        rows = SequenceTokens(
            session, chunk, logits=len(places), ranking=ranking if places else None
        )
        logits = draft.forward([rows])[0]
        draft.commit_kv(session, range(len(chunk)))
        found = logits.best()[0].tolist() if places else []
        for place, likeliest in zip(places, found, strict=True):
            chosen = tokens[place - len(prompt)]
            ranks.append(likeliest.index(chosen) if chosen in likeliest else len(likeliest))
    draft.close_session(session)
    return np.array(ranks, np.int64)
