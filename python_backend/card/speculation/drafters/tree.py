"""A draft model grows a tree of its likely continuations (CARD, arXiv 2508.04462).

The KV cache of the model holds the committed text and the expanded nodes below it: what a commit
leaves of the tree is never forwarded again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from card.cache import ANY, ROOT
from card.engines import Engine, Logits, Ranking, SequenceTokens
from card.engines.options import DRAFT_ROWS
from card.engines.row_costs import CostCurve
from card.speculation.drafters.draft_chain import DraftChain
from card.speculation.drafters.draft_pass import (
    Chosen,
    DraftedTree,
    Expansion,
    Limits,
    choose_nodes,
    nodes_of,
)
from card.speculation.drafters.growth import GROWTHS
from card.speculation.drafters.growth.frontier import (
    Masks,
    noise_for,
    ranked_children,
    ranking_of,
)
from card.speculation.drafters.growth.masks import masks_of
from card.speculation.drafters.interface import DraftConfig, DraftedSession, Model
from card.speculation.ngram import NgramProposer
from card.speculation.tree import Nodes, ReRoot, score_exponent

LONGEST_COMMIT = 16
"""As many tokens as a step of the target seldom exceeds: text that the KV cache lacks beyond that
is read like a prompt."""


class DraftPlan(NamedTuple):
    """What one session puts into a pass, before anything is proposed.

    text    tokens of the text that the KV cache lacks; they come first
    chunk   tokens that may be read at once
    chosen  nodes behind them; None: text alone is read
    """

    text: Sequence[int]
    chunk: int
    chosen: Chosen | None = None

    @property
    def behind(self) -> Sequence[int]:
        """Tokens from the text's end to where proposals may stand."""
        return () if self.chosen is None else self.chosen.behind

    @property
    def proposals(self) -> int:
        """Tokens that may be proposed, at most."""
        return 0 if self.chosen is None else self.chosen.proposals


class DraftPass(NamedTuple):
    """What one session puts into a pass.

    text       tokens of the text that come first in `rows`
    expansion  the rows behind them and the text's end; None: text alone is read
    positions  of every expanded row's children (empty if nothing depends on them)
    masks      what the guide allows below every row; None: everything
    """

    rows: SequenceTokens
    text: int
    expansion: Expansion | None = None
    positions: Sequence[int] = ()
    masks: Masks | None = None


class TreeDrafter:
    """Grows trees on an engine whose sessions hold them."""

    model: ClassVar[Model] = "engine"
    most_proposals: int = 2
    """Proposals behind a node: each costs a row in every pass, and beside nodes to expand more than
    two n-grams brought nothing."""
    runs_ahead: ClassVar[bool] = True
    """Passes may follow one another without a look; who is proposed to looks each time."""

    def __init__(self, model: Engine, config: DraftConfig) -> None:
        self._engine = model
        self._config = config
        self._trees: dict[int, DraftedTree] = {}
        self._shares: dict[int, tuple[int, int, CostCurve]] = {}

    def open(self, session: DraftedSession) -> None:
        noise = noise_for(session.request.parameters, self._engine)
        named, config = session.request.growth, self._config
        frontier = GROWTHS[config.growth if named == ANY else named](config.growth_config)
        drafted = DraftedTree(open_behind_kept(self._engine, session), noise, frontier)
        noise.forget(len(session.tokens))
        self._trees[session.number] = drafted

    def close(self, session: DraftedSession) -> None:
        close_and_keep(self._engine, self._trees.pop(session.number).engine_session, session)

    # --- correct ------------------------------------------------------------------------------

    def commit(self, session: DraftedSession, re_root: ReRoot) -> None:
        """The KV entries of the committed path join the prefix, those of surviving nodes stay."""
        drafted = self._trees[session.number]
        confirmed, surviving = drafted.re_root(session.tree, re_root)
        self._engine.commit_kv(drafted.engine_session, confirmed, surviving)
        drafted.noise.forget(len(session.tokens))

    # --- grow ---------------------------------------------------------------------------------

    def propose(self, sessions: Sequence[DraftedSession]) -> list[Nodes | None]:
        """Read what the KV cache lacks of a text, else expand the best nodes."""
        if len(sessions) == 1 and self._runs_ahead(sessions[0]):
            return [self._propose_chain(sessions[0])]
        plans = [
            self._plan(session, chunk, len(sessions))
            for session, chunk in self._with_chunks(sessions)
        ]
        planned = [(s, plan) for s, plan in zip(sessions, plans, strict=True) if plan is not None]
        proposed = iter(self._proposed(planned))
        passes = [
            None if plan is None else self._pass(session, plan, next(proposed))
            for session, plan in zip(sessions, plans, strict=True)
        ]
        batch = [planned.rows for planned in passes if planned is not None]
        logits = iter(self._engine.forward(batch) if batch else ())
        return [
            None if planned is None else self._grow(session, planned, next(logits))
            for session, planned in zip(sessions, passes, strict=True)
        ]

    def _proposed(self, planned: Sequence[tuple[DraftedSession, DraftPlan]]) -> list[list[int]]:
        """What each session adds to its pass, in a chain: n-grams."""
        return [
            self._trees[session.number].proposer.propose(plan.behind, plan.proposals)
            for session, plan in planned
        ]

    def _with_chunks(
        self, sessions: Sequence[DraftedSession]
    ) -> Iterator[tuple[DraftedSession, int]]:
        """How many tokens of its text each session may read in this pass. Long texts that are read
        at once share one chunk: candidates of the others wait no longer for many than for one."""
        reading = [self._reads_prompt(session) for session in sessions]
        chunk = min(self._config.prefill_chunk, self._engine.most_rows)
        # Never less than is committed meanwhile: whoever reads so little never catches up.
        share = max(min(chunk, LONGEST_COMMIT), chunk // max(1, sum(reading)))
        for session, reads in zip(sessions, reading, strict=True):
            yield session, share if reads else chunk

    def _reads_prompt(self, session: DraftedSession) -> bool:
        """Whether the KV cache lacks more than the target commits in a step."""
        known = self._engine.length(self._trees[session.number].engine_session)
        return len(session.tokens) - known > LONGEST_COMMIT

    def _plan(
        self, session: DraftedSession, chunk: int, sharing: int, *, is_chain: bool = False
    ) -> DraftPlan | None:
        """What to forward for one of `sharing` sessions, or first for a chain of passes; None:
        nothing can be expanded."""
        width, proposals, curve = (1, 0, CostCurve({})) if is_chain else self._share(sharing)
        drafted = self._trees[session.number]
        depth = min(self._config.depth, session.tokens_left)
        known = self._engine.length(drafted.engine_session)
        if known < len(session.tokens):
            return self._text_plan(session, drafted, known, chunk, min(proposals, depth - 1))
        _follow_text(drafted.proposer, session.tokens, len(session.tokens))
        tree = session.tree
        room = tree.capacity - max(len(tree), drafted.pending)
        exponent = score_exponent(greedy=session.request.parameters.is_greedy)
        proposals = min(proposals, self.most_proposals)
        limits = Limits(width, proposals, depth, room, curve, exponent)
        chosen = choose_nodes(drafted.view(session, tree), drafted.frontier, limits)
        return None if chosen is None else DraftPlan((), chunk, chosen)

    def _text_plan(
        self, session: DraftedSession, drafted: DraftedTree, known: int, chunk: int, proposals: int
    ) -> DraftPlan:
        """Text the KV cache lacks; behind its end, as far as the chunk has room, proposals."""
        missing = session.tokens[known : known + chunk]
        end = known + len(missing)
        _follow_text(drafted.proposer, session.tokens, end)
        if end < len(session.tokens):
            return DraftPlan(missing, chunk)
        most = max(0, min(proposals, chunk - len(missing)))
        return DraftPlan(missing, chunk, Chosen([ROOT], proposals=most))

    def _pass(self, session: DraftedSession, plan: DraftPlan, proposed: Sequence[int]) -> DraftPass:
        """The rows of a plan and of a chain of proposals."""
        drafted, text = self._trees[session.number], plan.text
        if plan.chosen is None:
            return DraftPass(SequenceTokens(drafted.engine_session, text, logits=0), len(text))
        expansion = plan.chosen.with_proposals(proposed)
        positions, masks, ranking = self._ranking(session, drafted, expansion)
        if text:
            rows = SequenceTokens(
                drafted.engine_session,
                [*text, *proposed],
                logits=len(expansion),
                ranking=ranking,
            )
        else:
            tokens, parents = expansion.tree_rows(session.tree, drafted.entry, drafted.pending)
            rows = SequenceTokens(drafted.engine_session, tokens, parents, ranking=ranking)
        return DraftPass(rows, len(text), expansion, positions, masks)

    def _share(self, sessions: int) -> tuple[int, int, CostCurve]:
        """Width, proposals and costs of one of `sessions`: they share the rows of a pass."""
        if sessions not in self._shares:
            config = self._config
            rows = max(1, DRAFT_ROWS // sessions)
            width = min(config.width, rows)
            costs_ms = self._engine.row_costs_ms if config.adapts else {}
            proposals = min(config.ngram_tokens, rows - width)
            self._shares[sessions] = width, proposals, CostCurve(costs_ms).shared(sessions)
        return self._shares[sessions]

    def _ranking(
        self, session: DraftedSession, drafted: DraftedTree, expansion: Expansion
    ) -> tuple[list[int], Masks | None, Ranking]:
        """Positions of the children of every row, which of them the guide allows, and what to ask
        the engine."""
        parameters = session.request.parameters
        positions: list[int] = []
        # Else nothing depends on where the children stand.
        if not parameters.is_greedy or parameters.logit_bias:
            first = len(session.tokens) + 1
            positions = [first + depth for depth in expansion.depths(session.tree)]
        masks = masks_of(session.constraint, expansion, session.tree)
        return positions, masks, ranking_of(positions, parameters, drafted.noise, masks)

    def _grow(self, session: DraftedSession, planned: DraftPass, logits: Logits) -> Nodes:
        """The best children of the forwarded rows."""
        drafted, expansion = self._trees[session.number], planned.expansion
        if expansion is None:
            self._engine.commit_kv(drafted.engine_session, range(planned.text))
            return Nodes(passes=0)
        frontier, tree = drafted.frontier, session.tree
        ranked = ranked_children(
            logits, planned.positions, session.request.parameters, planned.masks
        )
        depths = expansion.depths(tree)
        children = [frontier.hang(*pair) for pair in zip(ranked, depths, strict=True)]
        found, ranks, rows = nodes_of(expansion, children, tree, copied=frontier.shares)
        drafted.add(tree, found.parents, ranks)
        if planned.text:  # whose end is the first row
            right = drafted.expand_behind_text(rows[1:])
            self._engine.commit_kv(
                drafted.engine_session,
                range(planned.text),
                [planned.text + index for index in right],
            )
        else:
            drafted.expand(rows)
        return self._with_copies(session, drafted, found) if frontier.shares else found

    # --- grow in a chain of passes ------------------------------------------------------------

    def _runs_ahead(self, session: DraftedSession) -> bool:
        """Whether passes may follow one another before anybody looks at what they gave."""
        if session.passes <= 1 or session.constraint is not None:
            return False
        frontier = self._trees[session.number].frontier
        return self.runs_ahead and frontier.runs_ahead and self._engine.runs_ahead

    def _propose_chain(self, session: DraftedSession) -> Nodes | None:
        """Read what the KV cache lacks of a text or expand the best node, then the best child of
        that, and so on."""
        ((_, chunk),) = self._with_chunks([session])
        plan = self._plan(session, chunk, 1, is_chain=True)
        if plan is None:
            return None
        drafted = self._trees[session.number]
        if plan.chosen is None:
            planned = self._pass(session, plan, [])
            return self._grow(session, planned, self._engine.forward([planned.rows])[0])
        chain = DraftChain(session, drafted, plan.text, plan.chosen.nodes[0])
        depth = min(self._config.depth, session.tokens_left)
        room = session.tree.capacity - max(len(session.tree), drafted.pending)
        passes = min(session.passes, depth - 1 - chain.depth, room)
        rankings = chain.rankings(max(1, passes))  # behind a text that is whole, none is of use
        rows = chain.rows(rankings[0])
        found = self._engine.forward_chain(rows, rankings[1:], chain.entry)
        nodes, expanded = chain.grow(found)
        chain.keep(self._engine, expanded)
        return nodes

    def _with_copies(self, session: DraftedSession, drafted: DraftedTree, found: Nodes) -> Nodes:
        """With what nodes share, behind the nodes found by the pass."""
        grown = session.tree.with_nodes(found)
        depth = min(self._config.depth, session.tokens_left)
        copies, ranks = drafted.frontier.copies(drafted.view(session, grown), depth)
        drafted.add(grown, copies.parents, ranks)
        return Nodes(
            [*found.tokens, *copies.tokens],
            [*found.parents, *copies.parents],
            [*found.logprobs, *copies.logprobs],
            saved=copies.saved,
        )


def open_behind_kept(engine: Engine, session: DraftedSession) -> int:
    """A session of the engine behind text that is kept, if any is; the last token is read for what
    follows it."""
    if not session.request.reuses_kv:
        return engine.open_session()
    return engine.open_session(session.tokens[:-1], session.request.salt)


def close_and_keep(engine: Engine, number: int, session: DraftedSession) -> None:
    """Close the engine's session of this number, and keep its text if the request allows that."""
    if session.request.reuses_kv:
        engine.remember(number, session.tokens, session.request.salt)
    engine.close_session(number)


def _follow_text(proposer: NgramProposer, tokens: Sequence[int], until: int) -> None:
    """Let proposals come from the text up to there; a long prompt is taken in chunk by chunk, for
    the other sessions wait meanwhile."""
    proposer.extend(tokens[proposer.length : until])
