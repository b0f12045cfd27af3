"""A draft model grows a tree of its likely continuations (CARD, arXiv 2508.04462).

The KV cache of the model holds the committed text and the expanded nodes below it. Nodes that
survive a commit are never forwarded again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from card.cache import ANY, ROOT
from card.engines import Engine, Logits, Ranking, SequenceTokens
from card.engines.interface import CostCurve
from card.engines.options import DRAFT_ROWS
from card.speculation.drafters.draft_pass import (
    Chosen,
    DraftChain,
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
from card.speculation.drafters.interface import (
    DraftConfig,
    DraftedSession,
    GrowingTree,
    Model,
    Nodes,
    ReRoot,
)
from card.speculation.sources.ngram import NgramProposer
from card.speculation.sources.tree import score_exponent

LONGEST_COMMIT = 16
"""A step of the target seldom commits more tokens; a longer text without KV is read like a
prompt."""


class DraftPlan(NamedTuple):
    """The part of a pass for one session, before n-gram proposals.

    text    tokens of the text without KV; they come first
    chunk   most tokens that one pass reads
    chosen  nodes behind them; None: the pass reads only text
    masks   number of the draft's masks behind the nodes, which form a chain then (`parallel`);
            None: the pass makes no block
    """

    text: Sequence[int]
    chunk: int
    chosen: Chosen | None = None
    masks: int | None = None

    @property
    def behind(self) -> Sequence[int]:
        """Tokens from the text's end to the place of proposals."""
        return () if self.chosen is None else self.chosen.behind

    @property
    def proposals(self) -> int:
        """Most tokens that may be proposed."""
        return 0 if self.chosen is None else self.chosen.proposals


class DraftPass(NamedTuple):
    """The part of a pass for one session.

    text       tokens of the text that come first in `rows`
    expansion  the rows behind the text's end; None: the pass reads only text
    positions  position of every expanded row's children (empty if nothing depends on them)
    masks      ids that the guide allows below every row; None: all ids
    block      masks of the draft follow the expanded rows (`parallel`)
    """

    rows: SequenceTokens
    text: int
    expansion: Expansion | None = None
    positions: Sequence[int] = ()
    masks: Masks | None = None
    block: bool = False


class TreeDrafter:
    """Grows trees on an engine with tree sessions."""

    model: ClassVar[Model] = "engine"
    most_proposals: int = 2
    """Most proposals behind a node. Each costs a row in every pass, and more than two n-grams
    beside nodes to expand gained nothing."""
    runs_ahead: ClassVar[bool] = True
    """Whether passes may run as a chain; a drafter that reviews proposals looks after each pass."""

    def __init__(self, model: Engine, config: DraftConfig) -> None:
        self._engine = model
        self._config = config
        self._trees: dict[int, DraftedTree] = {}
        self._shares: dict[int, tuple[int, int, CostCurve]] = {}

    def open(self, session: DraftedSession) -> None:
        noise = noise_for(session.request.parameters, self._engine)
        named, config = session.request.growth, self._config
        frontier = GROWTHS[config.growth if named == ANY else named](config.growth_config)
        engine_session = open_behind_kept(self._engine, session)
        drafted = DraftedTree(engine_session, noise, frontier, self._new_proposer())
        noise.forget(len(session.tokens))
        self._trees[session.number] = drafted

    def close(self, session: DraftedSession) -> None:
        close_and_keep(self._engine, self._trees.pop(session.number).engine_session, session)

    # --- correct ------------------------------------------------------------------------------

    def commit(self, session: DraftedSession, re_root: ReRoot) -> None:
        """Move the KV entries of the committed path to the prefix; keep those of surviving
        nodes."""
        drafted = self._trees[session.number]
        confirmed, surviving = drafted.re_root(session.tree, re_root)
        self._engine.commit_kv(drafted.engine_session, confirmed, surviving)
        drafted.noise.forget(len(session.tokens))

    # --- grow ---------------------------------------------------------------------------------

    def propose(self, sessions: Sequence[DraftedSession]) -> list[Nodes | None]:
        """Read the tokens of a text without KV, else expand the best nodes."""
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
        """The chain of n-grams that each session adds to its pass."""
        return [
            self._trees[session.number].proposer.propose(plan.behind, plan.proposals)
            for session, plan in planned
        ]

    def _with_chunks(
        self, sessions: Sequence[DraftedSession]
    ) -> Iterator[tuple[DraftedSession, int]]:
        """Tokens of its text that each session may read in this pass. Long texts in one pass share
        one chunk, so that the candidates of the other sessions wait no longer."""
        reading = [self._reads_prompt(session) for session in sessions]
        chunk = min(self._config.prefill_chunk, self._engine.most_rows)
        # Never fewer tokens than the target commits meanwhile, or the draft never catches up.
        share = max(min(chunk, LONGEST_COMMIT), chunk // max(1, sum(reading)))
        for session, reads in zip(sessions, reading, strict=True):
            yield session, share if reads else chunk

    def _reads_prompt(self, session: DraftedSession) -> bool:
        """Whether more tokens lack KV than the target commits in a step."""
        known = self._engine.length(self._trees[session.number].engine_session)
        return len(session.tokens) - known > LONGEST_COMMIT

    def _plan(
        self, session: DraftedSession, chunk: int, sharing: int, *, is_chain: bool = False
    ) -> DraftPlan | None:
        """The plan of one of `sharing` sessions, or of the first pass of a chain; None: nothing can
        be expanded."""
        width, proposals, curve = (1, 0, CostCurve({})) if is_chain else self._share(sharing)
        drafted = self._trees[session.number]
        depth = self._depth(session)
        known = self._engine.length(drafted.engine_session)
        if known < len(session.tokens):
            return self._text_plan(session, drafted, known, chunk, min(proposals, depth - 1))
        follow_text(drafted.proposer, session.tokens, len(session.tokens))
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
        """Tokens of the text without KV; behind its end, as far as the chunk has room, n-grams."""
        missing = session.tokens[known : known + chunk]
        end = known + len(missing)
        follow_text(drafted.proposer, session.tokens, end)
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

    def _depth(self, session: DraftedSession) -> int:
        """Tokens that the tree may run ahead of the text."""
        return min(self._config.depth, session.tokens_left)

    def _share(self, sessions: int) -> tuple[int, int, CostCurve]:
        """Width, proposals and costs of one of `sessions` sessions that share a pass's rows."""
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
        """Positions of the children of every row, the ids that the guide allows, and the ranking
        for the engine."""
        parameters = session.request.parameters
        positions: list[int] = []
        # Without noise nothing depends on the children's positions.
        if not parameters.is_greedy or parameters.logit_bias:
            first = len(session.tokens) + 1
            positions = [first + depth for depth in expansion.depths(session.tree)]
        masks = expansion.masks(session.constraint, session.tree)
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
        if planned.text:  # the end of the text is the first row
            right = drafted.expand_behind_text(rows[1:])
            self._engine.commit_kv(
                drafted.engine_session,
                range(planned.text),
                [planned.text + index for index in right],
            )
        else:
            drafted.expand(rows)
        return self._with_copies(session, drafted, found, tree) if frontier.shares else found

    # --- grow in a chain of passes ------------------------------------------------------------

    def _runs_ahead(self, session: DraftedSession) -> bool:
        """Whether passes may run as a chain, without a look at their results in between."""
        if session.passes <= 1 or session.constraint is not None:
            return False
        frontier = self._trees[session.number].frontier
        return self.runs_ahead and frontier.runs_ahead and self._engine.runs_ahead

    def _propose_chain(self, session: DraftedSession) -> Nodes | None:
        """Read the tokens of a text without KV or expand the best node; then expand the best child
        of that node, and so on."""
        ((_, chunk),) = self._with_chunks([session])
        plan = self._plan(session, chunk, 1, is_chain=True)
        if plan is None:
            return None
        drafted = self._trees[session.number]
        if plan.chosen is None:
            planned = self._pass(session, plan, [])
            return self._grow(session, planned, self._engine.forward([planned.rows])[0])
        chain = DraftChain(session, drafted, plan.text, plan.chosen.nodes[0])
        depth = self._depth(session)
        room = session.tree.capacity - max(len(session.tree), drafted.pending)
        passes = min(session.passes, depth - 1 - chain.depth, room)
        rankings = chain.rankings(max(1, passes))  # a whole text needs no candidates
        rows = chain.rows(rankings[0])
        found = self._engine.forward_chain(rows, rankings[1:], chain.entry)
        nodes, expanded = chain.grow(found)
        chain.keep(self._engine, expanded)
        return nodes

    def _new_proposer(self) -> NgramProposer:
        return NgramProposer()

    def _with_copies(
        self, session: DraftedSession, drafted: DraftedTree, found: Nodes, tree: GrowingTree
    ) -> Nodes:
        """The nodes of the pass, which belong to `tree`, then the copies that nodes share."""
        grown = tree.with_nodes(found)
        depth = self._depth(session)
        copies, ranks = drafted.frontier.copies(drafted.view(session, grown), depth)
        drafted.add(grown, copies.parents, ranks)
        return found._replace(
            tokens=[*found.tokens, *copies.tokens],
            parents=[*found.parents, *copies.parents],
            logprobs=[*found.logprobs, *copies.logprobs],
            saved=copies.saved,
        )


def open_behind_kept(engine: Engine, session: DraftedSession) -> int:
    """Open a session of the engine with kept KV, if there is any. The last token is always read,
    because its logits are needed."""
    if not session.request.reuses_kv:
        return engine.open_session()
    return engine.open_session(session.tokens[:-1], session.request.salt)


def close_and_keep(engine: Engine, number: int, session: DraftedSession) -> None:
    """Close the engine's session of this number, and keep its text if the request allows that."""
    if session.request.reuses_kv:
        engine.remember(number, session.tokens, session.request.salt)
    engine.close_session(number)


def follow_text(proposer: NgramProposer, tokens: Sequence[int], until: int) -> None:
    """Add the text up to `until` to the proposer; a long prompt is added chunk by chunk, because
    the other sessions wait meanwhile."""
    proposer.extend(tokens[proposer.length : until])
