"""Blocks that a draft makes at places of a text, while the target's newest states are missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from card.cache import ROOT, SlotRequest, States
from card.drafting.drafters import draft_config
from card.engines import Engine, SequenceTokens
from card.sampling import SamplingParameters
from card.settings import Settings
from card.speculation.drafters import DRAFTERS, DraftedSession, Drafter
from card.speculation.drafters.interface import GrowingTree

_CHUNK = 64
_NODES = 512


@dataclass(frozen=True)
class Written:
    """
    tokens  of a prompt and of the target's text behind it
    prompt  how many of them are the prompt's
    states  [tokens, numbers] of the target; None: the draft reads none
    """

    tokens: Sequence[int]
    prompt: int
    states: States | None

    def places(self, count: int, block: int) -> list[int]:
        """Lengths of text behind which a block of the target's own tokens follows."""
        last = len(self.tokens) - block
        places: list[int] = np.unique(np.linspace(self.prompt + 1, last, count, dtype=int)).tolist()
        return places


def states_of(target: Engine, tokens: Sequence[int]) -> States | None:
    """The tapped states of a text; None: the target has no taps."""
    session, found = target.open_session(), []
    for start in range(0, len(tokens), _CHUNK):
        chunk = [*tokens[start : start + _CHUNK]]
        states = target.forward([SequenceTokens(session, chunk, logits=0)])[0].states
        if states is not None:
            found.append(states)
        target.commit_kv(session, range(len(chunk)))
    target.close_session(session)
    return np.concatenate(found) if found else None


class Blocks:
    """A draft behind its own drafter, which makes one greedy chain: in one pass, if it can. A place
    of such a block at which no token is likely ends it."""

    def __init__(self, engine: Engine, settings: Settings, block: int) -> None:
        config = draft_config(settings)
        config = replace(
            config,
            width=1,
            depth=block,
            growth="layered",
            ngram_tokens=0,
            adapts=False,
            block=block if config.block > 1 else 1,
        )
        self._block, self._in_one_pass = block, config.block > 1
        self._drafter: Drafter = DRAFTERS[settings.drafter](engine, config)

    def accepted(self, written: Written, places: int, lag: int) -> float:
        """Mean number of tokens that the target accepts of a block. Behind each of the text's
        places the `lag` newest tokens that may have states have none."""
        counts = []
        for length in written.places(places, self._block):
            wanted = written.tokens[length : length + self._block]
            drafted = self._draft(written, length, lag)
            right = [one == other for one, other in zip(drafted, wanted, strict=False)]
            counts.append(right.index(False) if False in right else len(right))
        return fmean(counts)

    def _draft(self, written: Written, length: int, lag: int) -> list[int]:
        """The likeliest path that the drafter makes behind the first `length` tokens."""
        tokens = [*written.tokens[:length]]
        known = max(0, length - 1 - lag)  # the target has not read the last token yet
        states = written.states

        def published(start: int) -> tuple[int, States]:
            assert states is not None
            return start, states[start:known]

        parameters = SamplingParameters()
        request = SlotRequest(
            np.array(tokens[:-1]), self._block + 1, "card", parameters, reuses_kv=False
        )
        session = DraftedSession(
            0, request, tokens, GrowingTree(_NODES), states=None if states is None else published
        )
        self._drafter.open(session)
        while session.tree.height < self._block:
            (nodes,) = self._drafter.propose([session])
            if nodes is None or nodes.waits:
                break
            if nodes.replaces:
                session.tree.clear()
            session.tree.add(nodes)
            if nodes.tokens and self._in_one_pass:
                break
        self._drafter.close(session)
        return _likeliest(session.tree)


def _likeliest(tree: GrowingTree) -> list[int]:
    """Tokens from the root down, the likeliest child of each."""
    path: list[int] = []
    node = ROOT
    while below := tree.below(node):
        node = max(below.values(), key=tree.score.__getitem__)
        path.append(tree.token[node])
    return path
