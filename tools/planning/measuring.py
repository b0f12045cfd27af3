"""Measures what the simulation needs of a pair: the draft's foresight of the target's texts."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from bench.prompts import Prompt
from card.cache import NO_SALT, Candidates
from card.engines import Engine, SequenceTokens
from card.sampling import History, SamplingParameters, sample
from card.speculation.drafters.growth.frontier import (
    Child,
    noise_for,
    ranked_children,
    ranking_of,
    worthwhile_children,
)
from card.speculation.ngram import JUDGED, NgramMemory, NgramProposer
from planning.acceptance import (
    ABSENT,
    CONFIDENCE,
    MISSED,
    RIGHT,
    WRONG,
    Foresight,
    TextRecord,
    children_table,
)

_CHUNK = 32


@dataclass(frozen=True)
class _Reading:
    """One token as the draft saw it coming.

    rank           of the target's token among the children that the draft keeps; None: it is none
    probabilities  of these children, best first
    """

    rank: int | None
    probabilities: list[float]

    @property
    def level(self) -> int:
        return bisect_right(CONFIDENCE, self.probabilities[0])


def measure_foresight(
    target: Engine,
    draft: Engine,
    prompts: Sequence[Prompt],
    max_tokens: int,
    temperature: float,
    on_text: Callable[[], None] = lambda: None,
    ngrams: NgramMemory | None = None,
    small: Engine | None = None,
) -> Foresight:
    """Let the target write alone and the draft read along; prompt i is sampled with seed i.

    Every text has `max_tokens` tokens: no token ends it, as in the benchmark.

    ngrams  of the target; None: its proposals come from each text alone
    small   a smaller draft, which reads along too
    """
    ngrams = ngrams or NgramMemory()
    texts: list[TextRecord] = []
    levels: list[int] = []
    probabilities: list[list[float]] = []
    for seed, prompt in enumerate(prompts):
        # On the wire a temperature has 32 bits.
        parameters = SamplingParameters(temperature=float(np.float32(temperature)), seed=seed)
        written = _write(target, prompt.tokens, parameters, max_tokens)
        readings = _read_along(draft, prompt.tokens, written, parameters)
        proposer = ngrams.proposer(NO_SALT)
        proposer.extend(prompt.tokens, min(JUDGED, len(prompt.tokens)))
        hit_rate = proposer.hit_rate
        proposed = _proposals_along(proposer, written)
        texts.append(
            TextRecord(
                prompt_tokens=len(prompt.tokens),
                hit_rate=round(hit_rate, 3),
                ranks="".join(MISSED if r.rank is None else str(r.rank) for r in readings),
                confidence="".join(str(r.level) for r in readings),
                proposals="".join(
                    ABSENT if not found.tokens else RIGHT if found.tokens[0] == token else WRONG
                    for found, token in zip(proposed, written, strict=True)
                ),
                chances="".join(str(int(10 * sum(found.chances))) for found in proposed),
                parcels=None
                if small is None
                else _chosen_by(small, prompt.tokens, written, parameters),
                likeliest=_chosen_by(draft, prompt.tokens, written, SamplingParameters()),
            )
        )
        levels += [reading.level for reading in readings]
        probabilities += [reading.probabilities for reading in readings]
        on_text()
    return Foresight(
        temperature=temperature, children=children_table(levels, probabilities), texts=texts
    )


def _write(
    target: Engine, prompt: Sequence[int], parameters: SamplingParameters, count: int
) -> list[int]:
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


def _read_along(
    draft: Engine, prompt: Sequence[int], written: Sequence[int], parameters: SamplingParameters
) -> list[_Reading]:
    """What the draft would have hung into its tree behind every true beginning of the text."""
    children = children_along(draft, prompt, written, parameters)
    return [_reading(*pair) for pair in zip(children, written, strict=True)]


def _chosen_by(
    small: Engine, prompt: Sequence[int], written: Sequence[int], parameters: SamplingParameters
) -> str:
    """For every token of the text whether this draft would choose it."""
    choices = children_along(small, prompt, written, parameters)
    pairs = zip(choices, written, strict=True)
    return "".join(RIGHT if found[0].token == token else WRONG for found, token in pairs)


def children_along(
    draft: Engine, prompt: Sequence[int], written: Sequence[int], parameters: SamplingParameters
) -> list[list[Child]]:
    """The best children behind every true beginning of the text."""
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


def _reading(children: Sequence[Child], token: int) -> _Reading:
    tokens = [child.token for child in children]
    return _Reading(
        tokens.index(token) if token in tokens else None,
        [math.exp(child.rank) for child in children],
    )


def _proposals_along(proposer: NgramProposer, written: Sequence[int]) -> list[Candidates]:
    """The likeliest proposal before every token of the text, if there is one."""
    found: list[Candidates] = []
    for token in written:
        found.append(proposer.candidates([], 1))
        proposer.extend([token])
    return found


NGRAMS, SMALL, DRAFT, TARGET = "n-grams", "draft_small", "draft", "target"
"""Levels of a hierarchy, the cheapest first."""


def measure_agreements(
    target: Engine,
    drafts: Mapping[str, Engine],
    prompts: Sequence[Prompt],
    max_tokens: int,
    temperature: float,
    on_text: Callable[[], None] = lambda: None,
) -> dict[tuple[str, str], float]:
    """How often every level of a hierarchy would choose what one below it did, on texts that the
    target writes alone; n-grams that propose nothing agree with nobody.

    drafts  by their levels, the cheapest first
    """
    choices: dict[str, list[int | None]] = {level: [] for level in (NGRAMS, *drafts, TARGET)}
    for seed, prompt in enumerate(prompts):
        parameters = SamplingParameters(temperature=float(np.float32(temperature)), seed=seed)
        written = _write(target, prompt.tokens, parameters, max_tokens)
        proposer = NgramProposer()
        proposer.extend(prompt.tokens)
        proposed = _proposals_along(proposer, written)
        choices[NGRAMS] += [next(iter(found.tokens), None) for found in proposed]
        for level, engine in drafts.items():
            children = children_along(engine, prompt.tokens, written, parameters)
            choices[level] += [below[0].token for below in children]
        choices[TARGET] += written
        on_text()
    return {
        (below, above): _share_alike(choices[below], choices[above])
        for below, above in combinations(choices, 2)
    }


def _share_alike(some: Sequence[int | None], others: Sequence[int | None]) -> float:
    return sum(a == b for a, b in zip(some, others, strict=True)) / len(some)
