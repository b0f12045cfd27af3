"""A chain of draft passes that follow one another without a look at what they give: each expands
the likeliest child of the node that the one before expanded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from typing_extensions import Self

from card.engines import Engine, Logits, Ranking, SequenceTokens
from card.speculation.drafters.branches import Branches
from card.speculation.drafters.growth.children import ranked_children, ranking_of
from card.speculation.drafters.growth.expansion import NO_NODE, Expansion, nodes_of
from card.speculation.drafters.interface import DraftedSession
from card.speculation.tree import Nodes


@dataclass(slots=True)
class Chain:
    """One session's passes, first to last.

    text   tokens of the text that the first pass reads; its end is expanded if there are any
    nodes  expanded by the passes: of the first one an unexpanded node of the tree, or `ROOT` behind
           a text; `NO_NODE` where the tree had no room for it
    depth  of the first of them; -1 for the text's end
    """

    session: DraftedSession
    branches: Branches
    text: Sequence[int]
    nodes: list[int]
    depth: int
    _positions: list[int] = field(default_factory=list)

    @classmethod
    def begin(
        cls, session: DraftedSession, branches: Branches, text: Sequence[int], node: int
    ) -> Self:
        return cls(session, branches, text, [node], session.tree.depth_of(node))

    @property
    def entry(self) -> int:
        """The pending KV entry that the last row of the first pass becomes."""
        return len(self.text) - 1 if self.text else self.branches.pending

    def rankings(self, passes: int) -> list[Ranking]:
        """What each of so many passes asks the engine."""
        first = len(self.session.tokens) + 1 + self.depth
        self._positions = list(range(first, first + passes))
        parameters, noise = self.session.request.parameters, self.branches.noise
        return [ranking_of([position], parameters, noise) for position in self._positions]

    def rows(self, ranking: Ranking) -> SequenceTokens:
        """What the first pass reads."""
        branches = self.branches
        if self.text:
            return SequenceTokens(branches.engine_session, self.text, logits=1, ranking=ranking)
        expansion = Expansion(self.nodes, [])
        tokens, parents = expansion.tree_rows(self.session.tree, branches.entry, branches.pending)
        return SequenceTokens(branches.engine_session, tokens, parents, ranking=ranking)

    def grow(self, found: Sequence[Logits]) -> Nodes:
        """The best children of every node that was expanded."""
        branches, tree = self.branches, self.session.tree
        parameters = self.session.request.parameters
        tokens, parents, logprobs = list[int](), list[int](), list[float]()
        for depth, (logits, position) in enumerate(
            zip(found, self._positions, strict=True), self.depth
        ):
            (ranked,) = ranked_children(logits, [position], parameters)
            children = branches.frontier.hang(ranked, depth)
            expansion = Expansion(self.nodes[-1:], [])
            nodes, ranks, _ = nodes_of(expansion, [children], tree, copied=False)
            branches.add(tree, nodes.parents, ranks)
            below = dict(
                zip(nodes.tokens, range(len(tree), len(tree) + len(nodes.tokens)), strict=True)
            )
            tree = tree.with_nodes(nodes)
            self.nodes.append(below.get(int(logits.best()[0][-1, 0]), NO_NODE))
            tokens += nodes.tokens
            parents += nodes.parents
            logprobs += nodes.logprobs
        self.nodes.pop()  # the last pass's best child, which no pass expanded
        return Nodes(tokens, parents, logprobs, passes=len(found))

    def keep(self, engine: Engine) -> None:
        """The KV entries of the text join the prefix, those of nodes stay."""
        branches, text = self.branches, self.text
        if not text:
            branches.expand(self.nodes)
            return
        right = branches.expand_behind_text(self.nodes[1:])
        surviving = [len(text) + index for index in right]
        engine.commit_kv(branches.engine_session, range(len(text)), surviving)
