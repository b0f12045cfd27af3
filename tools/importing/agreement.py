"""How often the draft would pick the token that the target wrote."""

from __future__ import annotations

from collections.abc import Sequence

from card.engines import Engine, SequenceTokens
from card.sampling import SamplingParameters
from card.speculation.drafters.growth.frontier import (
    noise_for,
    ranked_children,
    ranking_of,
    worthwhile_children,
)
from writing import read

_CHUNK = 32

Ranks = list[int | None]
"""The rank of each token of a text among the draft's candidates, 0 for the first choice. None: the
token is no candidate."""


def share_within(ranks: Ranks, best: int) -> float:
    """The share of tokens among the draft's `best` choices."""
    return sum(rank is not None and rank < best for rank in ranks) / len(ranks)


def ranks_along(
    draft: Engine, prompt: Sequence[int], written: Sequence[int], parameters: SamplingParameters
) -> Ranks:
    """The draft reads the text that the target has written, with the noise of its seed, and ranks
    its candidates behind every true beginning."""
    session = draft.open_session()
    read(draft, session, prompt[:-1])
    known = [prompt[-1], *written[:-1]]
    noise = noise_for(parameters, draft)
    ranks: Ranks = []
    for start in range(0, len(known), _CHUNK):
        chunk = known[start : start + _CHUNK]
        first = len(prompt) + start
        positions = list(range(first, first + len(chunk)))
        ranking = ranking_of(positions, parameters, noise)
        logits = draft.forward([SequenceTokens(session, chunk, ranking=ranking)])[0]
        found = map(worthwhile_children, ranked_children(logits, positions, parameters))
        for children, token in zip(found, written[start : start + _CHUNK], strict=True):
            tokens = [child.token for child in children]
            ranks.append(tokens.index(token) if token in tokens else None)
        draft.commit_kv(session, range(len(chunk)))
    draft.close_session(session)
    return ranks
