"""One session as the draft sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from card.cache import DraftSlot, SlotRequest
from card.confidence import confidence_in
from card.constraints.compiler import Constraint
from card.drafting.children import Child, Masks, best_children, noise_for, ranking_of
from card.drafting.expansion import Expansion, choose_expansion
from card.drafting.growth import FRONTIERS
from card.drafting.masks import masks_of
from card.drafting.tree import GrowingTree
from card.drafting.width import Width
from card.engines import Engine, Logits, Ranking, Rows
from card.lookup import TextLookup
from card.pacing import SETTLED, draft_may_run
from card.sampling import PositionNoise
from card.settings import SpeculationSettings

LONGEST_COMMIT = 16
"""As many tokens as a step of the target seldom exceeds: text that the KV cache lacks beyond that
is read like a prompt."""


@dataclass(slots=True)
class DraftSession:
    """Committed text, the growing tree below it, and the KV session of both.

    The engine's prefix is the committed text, perhaps without its last tokens; they are forwarded
    (as prefill) before anything can grow below them.
    """

    slot: DraftSlot
    generation: int
    request: SlotRequest
    engine_session: int
    tree: GrowingTree
    noise: PositionNoise
    constraint: Constraint | None = None
    tokens: list[int] = field(default_factory=list)
    passes: int = 0
    _inherited: int = 0
    _lookup: TextLookup = field(default_factory=TextLookup)
    _pending: int = 0
    _expansion: Expansion | None = None
    _children_at: list[int] = field(default_factory=list)
    _masks: Masks | None = None

    @classmethod
    def follow(
        cls,
        slot: DraftSlot,
        generation: int,
        request: SlotRequest,
        engine: Engine,
        growth: str = "best_first",
        constraint: Constraint | None = None,
    ) -> DraftSession:
        """Start at the prompt and what the target may have committed already."""
        slot.reset_counters()
        noise = noise_for(request.parameters, engine.vocabulary)
        tree = GrowingTree(slot.capacity, FRONTIERS[growth]())
        session = cls(slot, generation, request, engine.open_session(), tree, noise, constraint)
        committed = slot.output(0, slot.committed(generation)).tolist()
        if constraint is not None:
            constraint.advance(committed)
        session._extend([*request.prompt.tolist(), *committed])
        return session

    def rests(self) -> bool:
        """Whether the target wants no candidates of this session for now; its text is not followed
        meanwhile."""
        length = len(self.request.prompt) + self.slot.committed(self.generation)
        return length < self.slot.rests_until(self.generation)

    # --- correct ------------------------------------------------------------------------------

    def follow_commits(self, engine: Engine) -> None:
        """Take over what the target committed since the last look."""
        known = len(self.tokens) - len(self.request.prompt)
        committed = self.slot.committed(self.generation)
        if committed > known:
            self.re_root(self.slot.output(known, committed).tolist(), engine)

    def re_root(self, committed: list[int], engine: Engine) -> None:
        """The tree below the last committed token survives with its KV entries."""
        if self.constraint is not None:
            self.constraint.advance(committed)
        outcome = self.tree.re_root(committed)
        engine.keep(self.engine_session, outcome.confirmed, outcome.surviving)
        self._pending = len(outcome.surviving)
        self._inherited = self.tree.height
        self._extend(committed)
        self.slot.count_re_root(restarted=outcome.matched < len(committed))

    def _extend(self, committed: list[int]) -> None:
        """Append to the text and publish what is left of the tree below it."""
        self.tokens.extend(committed)
        self.noise.forget(len(self.tokens))
        self.passes = 0
        tree = self.tree
        self.slot.replace(self.generation, len(self.tokens), tree.token, tree.parent, tree.score)

    # --- grow ---------------------------------------------------------------------------------

    def reads_prompt(self, engine: Engine) -> bool:
        """Whether the KV cache lacks more than the target commits in a step."""
        missing = len(self.tokens) - engine.length(self.engine_session)
        return missing > LONGEST_COMMIT

    def _may_run(self) -> bool:
        """Whether the pacing allows a pass."""
        request = self.request
        begun = len(self.tokens) > len(request.prompt)
        return draft_may_run(
            request.decoding, request.gamma, self.passes, self._inherited, begun=begun
        )

    def next_rows(
        self, engine: Engine, chunk: int, how: SpeculationSettings, width: Width
    ) -> Rows | None:
        """What to forward next: text the KV cache lacks, else the best nodes; None: nothing."""
        if not self._may_run():
            return None
        known = engine.length(self.engine_session)
        if known < len(self.tokens):
            return self._text_rows(known, chunk, how)
        self._remember(len(self.tokens))
        expansion = self._expand(how, width)
        if not expansion.rows:
            self._settle()
            return None
        self._expansion = expansion
        tokens, parents = expansion.tree_rows(self.tree, self._pending)
        return Rows(self.engine_session, tokens, parents, ranking=self._ranking(expansion))

    def _remember(self, until: int) -> None:
        """Let guesses come from the text up to there; a long prompt is taken in chunk by chunk, for
        the other sessions wait meanwhile."""
        self._lookup.extend(self.tokens[self._lookup.length : until])

    def _expand(self, how: SpeculationSettings, width: Width) -> Expansion:
        confidence = confidence_in(greedy=self.request.parameters.is_greedy)
        return choose_expansion(
            self.tree,
            self._lookup,
            how,
            self._depth(how),
            self._room(),
            lambda scores: width.worthwhile(scores, confidence),
        )

    def _text_rows(self, known: int, chunk: int, how: SpeculationSettings) -> Rows:
        """Text the KV cache lacks; behind its end, as far as the chunk has room, guesses."""
        missing = self.tokens[known : known + chunk]
        self._remember(known + len(missing))
        if known + len(missing) < len(self.tokens):
            self._expansion = None
            return Rows(self.engine_session, missing, logits=0)
        count = min(how.lookahead, self._depth(how) - 1, chunk - len(missing))
        expansion = Expansion.of_root(self._lookup.guesses([], count))
        self._expansion = expansion
        return Rows(
            self.engine_session,
            [*missing, *expansion.guessed],
            logits=1 + len(expansion.guessed),
            ranking=self._ranking(expansion),
        )

    def _ranking(self, expansion: Expansion) -> Ranking:
        parameters = self.request.parameters
        # Else nothing depends on where the children stand.
        if not parameters.is_greedy or parameters.logit_bias:
            first = len(self.tokens) + 1
            self._children_at = [first + depth for depth in expansion.depths(self.tree)]
        self._masks = masks_of(self.constraint, expansion, self.tree)
        return ranking_of(self._children_at, parameters, self.noise, self._masks)

    def _depth(self, how: SpeculationSettings) -> int:
        left = len(self.request.prompt) + self.request.max_tokens - len(self.tokens)
        return min(how.depth, left)

    def _room(self) -> int:
        return self.tree.capacity - max(len(self.tree), self._pending)

    def _settle(self) -> None:
        if self.passes < SETTLED:
            self.passes = SETTLED
            self.slot.append([], [], [], SETTLED)

    def grow(self, rows: Rows, logits: Logits, engine: Engine) -> None:
        """Hang the best children of the forwarded rows into the tree and publish them."""
        expansion = self._expansion
        if expansion is None:
            engine.keep(self.engine_session, range(len(rows.tokens)))
            return
        children = best_children(logits, self._children_at, self.request.parameters, self._masks)
        tree = self.tree
        first = len(tree)
        nodes = self._hang(expansion, children)
        if rows.parents is None:
            self._keep_text(rows, expansion, nodes, engine)
        else:
            for entry, node in enumerate(nodes, self._pending):
                if node != GrowingTree.NO_NODE:
                    tree.entry[node] = entry
            self._pending += len(nodes)
        self.passes += 1
        self.slot.append(tree.token[first:], tree.parent[first:], tree.score[first:], self.passes)

    def _hang(self, expansion: Expansion, children: list[list[Child]]) -> list[int]:
        """Add the children of every row that is a node; returns the node of each row.

        A guess is a node if it is among the children of the row it was guessed behind.
        """
        tree = self.tree
        nodes = list(expansion.nodes)
        first_child: list[int] = []
        for row, below in enumerate(children):
            if row >= len(nodes):
                above, guess = expansion.guesses[row - len(expansion.nodes)]
                stop = first_child[above + 1] if above + 1 < row else len(tree)
                hung = tree.token[first_child[above] : stop]
                nodes.append(
                    first_child[above] + hung.index(guess) if guess in hung else GrowingTree.NO_NODE
                )
            first_child.append(len(tree))
            if nodes[row] != GrowingTree.NO_NODE:
                tree.hang(nodes[row], below)
        return nodes

    def _keep_text(
        self, rows: Rows, expansion: Expansion, nodes: list[int], engine: Engine
    ) -> None:
        """The text joins the prefix, and of the guesses those that became nodes stay."""
        text = len(rows.tokens) - len(expansion.guesses)
        right = [guess for guess, node in enumerate(nodes[1:]) if node != GrowingTree.NO_NODE]
        engine.keep(self.engine_session, range(text), [text + guess for guess in right])
        for entry, guess in enumerate(right):
            self.tree.entry[nodes[1 + guess]] = entry
        self._pending = len(right)
