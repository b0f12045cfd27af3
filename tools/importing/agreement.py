"""How often the draft, reading the target's text, would have picked the target's token."""

from __future__ import annotations

from collections.abc import Sequence

from card.engines import Engine, SequenceTokens
from card.sampling import History, SamplingParameters, sample
from card.speculation.drafters.growth.frontier import (
    Child,
    noise_for,
    ranked_children,
    ranking_of,
    worthwhile_children,
)

_CHUNK = 32

Ranks = list[int | None]
"""Of every token of a text: its rank among the draft's candidates, 0 for the first choice; None: it
is none of them."""


def share_within(ranks: Ranks, best: int) -> float:
    """Of all tokens, those among the draft's `best` choices."""
    return sum(rank is not None and rank < best for rank in ranks) / len(ranks)


def ranks_along(
    draft: Engine, prompt: Sequence[int], written: Sequence[int], parameters: SamplingParameters
) -> Ranks:
    """The engine that drafts reads the text that was measured, with the noise of its seed."""
    found = children_along(draft, prompt, written, parameters)
    ranks: Ranks = []
    for children, token in zip(found, written, strict=True):
        tokens = [child.token for child in children]
        ranks.append(tokens.index(token) if token in tokens else None)
    return ranks


def children_along(
    draft: Engine, prompt: Sequence[int], written: Sequence[int], parameters: SamplingParameters
) -> list[list[Child]]:
    """The draft's best candidates behind every true beginning of the text."""
    session = draft.open_session()
    _read(draft, session, prompt[:-1])
    read = [prompt[-1], *written[:-1]]
    noise = noise_for(parameters, draft)
    found: list[list[Child]] = []
    for start in range(0, len(read), _CHUNK):
        chunk = read[start : start + _CHUNK]
        first = len(prompt) + start
        positions = list(range(first, first + len(chunk)))
        ranking = ranking_of(positions, parameters, noise)
        logits = draft.forward([SequenceTokens(session, chunk, ranking=ranking)])[0]
        found += map(worthwhile_children, ranked_children(logits, positions, parameters))
        draft.commit_kv(session, range(len(chunk)))
    draft.close_session(session)
    return found


def write_alone(
    target: Engine, prompt: Sequence[int], parameters: SamplingParameters, count: int
) -> list[int]:
    """`count` tokens of the target behind `prompt`; no token ends the text."""
    history = History(list(prompt), len(prompt) + count)
    session = target.open_session()
    _read(target, session, prompt[:-1])
    for _ in range(count):
        logits = target.forward([SequenceTokens(session, history.tokens[-1:])])[0]
        history.append(sample(logits.row(0), history, parameters))
        target.commit_kv(session, [0])
    target.close_session(session)
    return history.tokens[len(prompt) :]


def _read(engine: Engine, session: int, tokens: Sequence[int]) -> None:
    for start in range(0, len(tokens), _CHUNK):
        chunk = list(tokens[start : start + _CHUNK])
        engine.forward([SequenceTokens(session, chunk, logits=0)])
        engine.commit_kv(session, range(len(chunk)))
