"""A chain of draft passes that run without a look at their results in between.

Each pass expands the likeliest child of the node that the pass before expanded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from card.engines import Engine, Logits, Ranking, SequenceTokens
from card.speculation.drafters.draft_pass import NO_NODE, DraftedTree, Expansion, nodes_of
from card.speculation.drafters.growth.frontier import ranked_children, ranking_of
from card.speculation.drafters.interface import DraftedSession
from card.speculation.tree import Nodes


@dataclass(frozen=True, slots=True)
class DraftChain:
    """One session's passes, first to last.

    text   tokens of the text that the first pass reads and expands behind; may be empty
    node   the node that the first pass expands: an unexpanded node, or `ROOT` behind a text
    """

    session: DraftedSession
    drafted: DraftedTree
    text: Sequence[int]
    node: int

    @property
    def depth(self) -> int:
        """Depth of the first node; -1 for the text's end."""
        return self.session.tree.depth_of(self.node)

    @property
    def entry(self) -> int:
        """The pending KV entry that the last row of the first pass becomes."""
        return len(self.text) - 1 if self.text else self.drafted.pending

    def rankings(self, passes: int) -> list[Ranking]:
        """The ranking of each of `passes` passes."""
        parameters, noise = self.session.request.parameters, self.drafted.noise
        return [ranking_of([self._position(at)], parameters, noise) for at in range(passes)]

    def rows(self, ranking: Ranking) -> SequenceTokens:
        """The rows of the first pass."""
        drafted = self.drafted
        if self.text:
            return SequenceTokens(drafted.engine_session, self.text, logits=1, ranking=ranking)
        expansion = Expansion([self.node], [])
        tokens, parents = expansion.tree_rows(self.session.tree, drafted.entry, drafted.pending)
        return SequenceTokens(drafted.engine_session, tokens, parents, ranking=ranking)

    def grow(self, found: Sequence[Logits]) -> tuple[Nodes, list[int]]:
        """The best children of every expanded node, and these nodes: one a pass, `NO_NODE` where
        the tree had no room."""
        drafted, tree, expanded = self.drafted, self.session.tree, [self.node]
        parameters = self.session.request.parameters
        tokens, parents, logprobs = list[int](), list[int](), list[float]()
        for at, logits in enumerate(found):
            (ranked,) = ranked_children(logits, [self._position(at)], parameters)
            children = drafted.frontier.hang(ranked, self.depth + at)
            expansion = Expansion(expanded[-1:], [])
            nodes, ranks, _ = nodes_of(expansion, [children], tree, copied=False)
            drafted.add(tree, nodes.parents, ranks)
            below = {token: node for node, token in enumerate(nodes.tokens, len(tree))}
            tree = tree.with_nodes(nodes)
            expanded.append(below.get(int(logits.best()[0][-1, 0]), NO_NODE))
            tokens += nodes.tokens
            parents += nodes.parents
            logprobs += nodes.logprobs
        return Nodes(tokens, parents, logprobs, passes=len(found)), expanded[:-1]

    def keep(self, engine: Engine, expanded: Sequence[int]) -> None:
        """The KV entries of the text join the prefix, those of nodes stay."""
        drafted, text = self.drafted, self.text
        if not text:
            drafted.expand(expanded)
            return
        right = drafted.expand_behind_text(expanded[1:])
        surviving = [len(text) + index for index in right]
        engine.commit_kv(drafted.engine_session, range(len(text)), surviving)

    def _position(self, at: int) -> int:
        """Position of the children of pass `at`, counted from the first pass."""
        return len(self.session.tokens) + 1 + self.depth + at
