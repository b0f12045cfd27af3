"""Hierarchical speculative decoding: a smaller draft drafts for the draft, and n-grams draft for
the smaller one (HSD, arXiv 2510.19705).

N-grams draft for `draft_small`, which reviews them until it has a parcel of `parcel` tokens. The
draft reviews the parcel in one pass. The target verifies the tokens that the draft keeps. Each
level corrects the first token that it would not choose itself, and the level below continues behind
the correction. Only the target decides the text, so the levels below may be lenient: the draft
keeps a token that is among its children worth a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from card.cache import num_agreed
from card.engines import Engine, Logits, SequenceTokens
from card.speculation.drafters.growth.frontier import (
    PositionNoise,
    noise_for,
    ranked_children,
    ranking_of,
)
from card.speculation.drafters.interface import DraftConfig, DraftedSession, Model, Nodes, ReRoot
from card.speculation.drafters.tree import (
    DraftPlan,
    TreeDrafter,
    close_and_keep,
    open_behind_kept,
)
from card.speculation.sources.ngram import NgramProposer


class HierarchyDrafter(TreeDrafter):
    """A tree drafter that reviews parcels of a smaller draft. Each new layer of the tree counts as
    a pass, so a pacing that waits for γ tokens waits for a parcel of γ."""

    model: ClassVar[Model] = "engines"
    runs_ahead = False

    def __init__(self, model: tuple[Engine, Engine], config: DraftConfig) -> None:
        draft, small = model
        super().__init__(draft, replace(config, ngram_tokens=config.parcel))
        self.most_proposals = config.parcel
        self._small = _SmallDraft(small, config.ngram_tokens)

    def open(self, session: DraftedSession) -> None:
        super().open(session)
        self._small.open(session)

    def close(self, session: DraftedSession) -> None:
        super().close(session)
        self._small.close(session)

    def commit(self, session: DraftedSession, re_root: ReRoot) -> None:
        super().commit(session, re_root)
        self._small.commit(session)

    def propose(self, sessions: Sequence[DraftedSession]) -> list[Nodes | None]:
        return [
            nodes and _counted_by_layers(session, nodes)
            for session, nodes in zip(sessions, super().propose(sessions), strict=True)
        ]

    def _proposed(self, planned: Sequence[tuple[DraftedSession, DraftPlan]]) -> list[list[int]]:
        """The parcels of the small draft."""
        parcels = []
        for session, plan in planned:
            drafted = self._trees[session.number]
            most = min(plan.proposals, session.tree.capacity - 1 - len(plan.behind))
            parcels.append(Parcel(session, drafted.proposer, plan.behind, most, plan.chunk))
        self._small.fill(parcels)
        return [parcel.tokens for parcel in parcels]


def _counted_by_layers(session: DraftedSession, nodes: Nodes) -> Nodes:
    if not nodes.passes:
        return nodes
    layers = session.tree.with_nodes(nodes).height - session.tree.height
    return nodes._replace(passes=max(1, layers))


@dataclass(slots=True)
class Parcel:
    """Tokens that a session's draft will review.

    proposer  the n-gram proposer
    behind    tokens from the text's end to the parcel
    most      most tokens of the parcel, within the KV cache's room: the text's last token may be
              pending
    chunk     most tokens that one pass reads
    tokens    the tokens so far
    """

    session: DraftedSession
    proposer: NgramProposer
    behind: Sequence[int]
    most: int
    chunk: int
    tokens: list[int] = field(default_factory=list)

    @property
    def path(self) -> list[int]:
        """All tokens behind the text: `behind`, then the parcel."""
        return [*self.behind, *self.tokens]


@dataclass(slots=True)
class _Chain:
    """The small draft's state of one session.

    engine_session  KV cache; its prefix is a beginning of the text, without the text's last token
    noise           the target's noise
    pending         tokens of the KV entries behind the prefix, in order
    """

    engine_session: int
    noise: PositionNoise
    pending: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a parcel in a pass.

    known      tokens that are read before `proposed`
    proposed   n-grams behind them
    positions  position behind the last known token, and behind each n-gram; empty: the pass reads
               only text
    """

    rows: SequenceTokens
    known: Sequence[int]
    proposed: Sequence[int]
    positions: list[int]


class _SmallDraft:
    """Writes parcels and reviews n-grams for them. It reads a prompt while the draft does.

    ngram_tokens  most n-grams that one pass reviews
    """

    def __init__(self, engine: Engine, ngram_tokens: int) -> None:
        self._engine = engine
        self._ngram_tokens = ngram_tokens
        self._chains: dict[int, _Chain] = {}

    def open(self, session: DraftedSession) -> None:
        noise = noise_for(session.request.parameters, self._engine)
        self._chains[session.number] = _Chain(open_behind_kept(self._engine, session), noise)

    def close(self, session: DraftedSession) -> None:
        close_and_keep(self._engine, self._chains.pop(session.number).engine_session, session)

    def commit(self, session: DraftedSession) -> None:
        """Move the entries of the text to the prefix; keep the rest of a chain that agrees."""
        chain = self._chains[session.number]
        chain.noise.forget(len(session.tokens))
        text = session.tokens[self._engine.length(chain.engine_session) :]
        right = num_agreed(chain.pending, text)
        self._keep(session, chain, len(chain.pending) if right == len(text) else right)

    def fill(self, parcels: Sequence[Parcel]) -> None:
        """Fill every parcel; those that lack tokens share a pass."""
        lacking = [parcel for parcel in parcels if self._has_to_read(parcel)]
        while lacking:
            passes = [self._rows(parcel) for parcel in lacking]
            found = self._engine.forward([planned.rows for planned in passes])
            lacking = [
                parcel
                for parcel, rows, logits in zip(lacking, passes, found, strict=True)
                if self._review(parcel, rows, logits)
            ]

    def _has_to_read(self, parcel: Parcel) -> bool:
        """Whether the parcel lacks tokens, or the small draft still reads the prompt."""
        chain, text = self._chains[parcel.session.number], parcel.session.tokens
        unread = len(text) - self._engine.length(chain.engine_session) - len(chain.pending)
        return parcel.most > 0 or unread > parcel.chunk

    def _rows(self, parcel: Parcel) -> _Rows:
        """The tokens of the text and its path that lack KV, then n-grams."""
        session = parcel.session
        chain = self._chains[session.number]
        wanted = session.tokens[self._engine.length(chain.engine_session) :] + parcel.path
        # The last token may be read again, because its logits are needed.
        self._keep(session, chain, min(num_agreed(chain.pending, wanted), len(wanted) - 1))
        missing = wanted[len(chain.pending) :]
        known = missing[: parcel.chunk]
        proposed, positions = list[int](), list[int]()
        if len(known) == len(missing):
            room = min(parcel.most - len(parcel.tokens) - 1, parcel.chunk - len(known))
            proposed = parcel.proposer.propose(parcel.path, min(self._ngram_tokens, max(0, room)))
            first = len(session.tokens) + len(parcel.path)
            positions = list(range(first, first + 1 + len(proposed)))
        begin, count = len(chain.pending), len(known) + len(proposed)
        ranking = ranking_of(positions, session.request.parameters, chain.noise)
        rows = SequenceTokens(
            chain.engine_session,
            [*known, *proposed],
            range(begin - 1, begin - 1 + count) if begin else None,
            logits=len(positions),
            ranking=ranking if positions else None,
        )
        return _Rows(rows, known, proposed, positions)

    def _review(self, parcel: Parcel, rows: _Rows, logits: Logits) -> bool:
        """Take the n-grams that the small draft chooses itself, and its own token behind them.
        Returns whether the parcel lacks more."""
        session = parcel.session
        chain = self._chains[session.number]
        if not rows.positions:
            chain.pending += rows.known
            self._keep(session, chain, len(chain.pending))
            return False
        choices = [
            children[0].token
            for children in ranked_children(logits, rows.positions, session.request.parameters)
        ]
        right = num_agreed(rows.proposed, choices)
        kept = len(chain.pending) + len(rows.known) + right
        chain.pending += [*rows.known, *rows.proposed]
        self._keep(session, chain, kept)
        parcel.tokens += choices[: right + 1]
        return len(parcel.tokens) < parcel.most

    def _keep(self, session: DraftedSession, chain: _Chain, count: int) -> None:
        """Drop all but the first `count` pending entries; those of the text join the prefix."""
        lacks = len(session.tokens) - 1 - self._engine.length(chain.engine_session)
        confirmed = max(0, min(count, lacks))
        if confirmed or count < len(chain.pending):
            number = chain.engine_session
            self._engine.commit_kv(number, range(confirmed), range(confirmed, count))
            chain.pending = chain.pending[confirmed:count]
