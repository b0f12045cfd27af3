"""Candidate trees: a validated snapshot, and the query of query-and-correct (arXiv 2508.04462, §3).

A reader copies what the draft or a device published and checks the copy before it uses it. The
query is a pure function of a snapshot. The query decides no token: poor candidates cost only speed.

A device's chain is short. Its writer always writes the whole chain, into the half of a double
buffer that no reader uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan
from operator import lt

from card.cache.layout import LONGEST_CHAIN
from card.cache.request import Record

ROOT = -1
"""Parent of the nodes that follow the last token at the tree's root."""

_HIGHEST_SCORE = 1e-6
"""Log-probabilities are at most 0, except for rounding errors."""


def follow(
    token: Sequence[int], parent: Sequence[int], node: int, tokens: Sequence[int]
) -> list[int]:
    """Nodes below `node` along `tokens`, as far as the tree has them.

    token, parent  token and parent of every node; parents stand before their children
    """
    path: list[int] = []
    if not tokens:
        return path
    # Children stand behind their parents, so one scan of the nodes finds the whole path.
    for child in range(node + 1, len(token)):
        if parent[child] == node and token[child] == tokens[len(path)]:
            path.append(child)
            node = child
            if len(path) == len(tokens):
                break
    return path


@dataclass(slots=True)
class Tree:
    """A snapshot of a candidate tree; parents stand before their children.

    root_length  committed tokens (prompt and output) that the root stands for
    token        token id of every node
    parent       parent of every node: another node or `ROOT`
    score        log-probability of the path from the root to every node, under the draft
    """

    root_length: int
    token: list[int]
    parent: list[int]
    score: list[float]

    @classmethod
    def checked(
        cls,
        root_length: int,
        token: list[int],
        parent: list[int],
        score: list[float],
        vocabulary: int,
    ) -> Tree | None:
        """The tree of these nodes; None if any node is invalid, so that a garbage write is safe.

        In a valid tree tokens lie in the vocabulary, parents stand before children (so there is no
        cycle) and scores are numbers. Unlikely tokens cost only speed.
        """
        is_sound = not token or (
            min(token) >= 0
            and max(token) < vocabulary
            and min(parent) >= ROOT
            and all(map(lt, parent, range(len(parent))))
            and max(score) <= _HIGHEST_SCORE
            and not any(map(isnan, score))
        )
        return cls(root_length, token, parent, score) if is_sound else None


_MOST_FLIPS = (1 << 62) - 1
_READ_ATTEMPTS = 3
_PARENTS = list(range(ROOT, LONGEST_CHAIN + ROOT))
_SCORES = [0.0] * LONGEST_CHAIN
"""A device sends tokens without scores. The target measures their acceptance rate."""


def write_chain(record: Record, session_id: int, root_length: int, tokens: Sequence[int]) -> None:
    """Publish at most `LONGEST_CHAIN` candidates that follow `root_length` tokens of prompt and
    output."""
    half = (record["chain_flip"] + 1) & 1
    record.write("chain_session_id", half, [session_id])
    record.write("chain_root_length", half, [root_length])
    record.write("chain_token", half * LONGEST_CHAIN, tokens)
    record.write("chain_length", half, [len(tokens)])
    record["chain_flip"] = (record["chain_flip"] + 1) & _MOST_FLIPS


def read_chain(record: Record, session_id: int, vocabulary: int) -> Tree | None:
    """The chain of the session with this id, as a tree without branches; None if there is no valid
    chain."""
    for _ in range(_READ_ATTEMPTS):
        flip = record["chain_flip"]
        half = flip & 1
        if record.words("chain_session_id")[half] != session_id:
            return None
        length = record.words("chain_length")[half]
        root_length = record.words("chain_root_length")[half]
        token = record["chain_token"][half, :length].tolist()
        if record["chain_flip"] == flip:
            return Tree.checked(root_length, token, _PARENTS[:length], _SCORES[:length], vocabulary)
    return None


def chain_begins_at(record: Record, session_id: int) -> int | None:
    """Length of prompt and output that the session's chain follows; None: there is no chain."""
    half = record["chain_flip"] & 1
    if record.words("chain_session_id")[half] != session_id:
        return None
    return int(record.words("chain_root_length")[half])


LEAST_CHANCE = 1e-2
"""Nodes below this probability (given the last committed token) are not worth a row."""


@dataclass(slots=True)
class Candidates:
    """Tokens that may follow the last committed one, parents before children.

    parents[i] is an index into `tokens`, or `ROOT` for the last committed token. chances[i] is the
    probability that the target accepts token i and all its ancestors.
    """

    tokens: list[int]
    parents: list[int]
    chances: list[float] = field(default_factory=list, compare=False)

    @classmethod
    def chain(cls, tokens: list[int], chances: list[float]) -> Candidates:
        """A chain: every token follows the token before it."""
        return cls(tokens, list(range(ROOT, len(tokens) - 1)), chances)

    def first(self, count: int) -> Candidates:
        """The first `count` candidates."""
        return Candidates(self.tokens[:count], self.parents[:count], self.chances[:count])

    def followed_by(self, others: Candidates) -> Candidates:
        """This chain with `others` below its last token; their chances are multiplied with that
        token's."""
        if not len(self):
            return others
        first = len(self)
        return Candidates(
            [*self.tokens, *others.tokens],
            [*self.parents, *(first + parent for parent in others.parents)],
            [*self.chances, *(self.chances[-1] * chance for chance in others.chances)],
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def depths(self) -> Sequence[int]:
        """Depth of each candidate; 0 for those that follow the last committed token."""
        if self.is_chain:
            return range(len(self.tokens))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent == ROOT else depths[parent] + 1)
        return depths

    @property
    def is_chain(self) -> bool:
        """Whether every token follows the token before it."""
        return self.parents == list(range(ROOT, len(self.parents) - 1))


NO_CANDIDATES = Candidates([], [])


def descend(tree: Tree, node: int, committed: Sequence[int]) -> int | None:
    """The node reached from `node` along `committed` tokens, or None where the tree lacks one."""
    if not committed:
        return node
    path = follow(tree.token, tree.parent, node, committed)
    return path[-1] if len(path) == len(committed) else None


def num_agreed(tokens: Sequence[int], candidates: Sequence[int]) -> int:
    """How many of the first tokens are the first candidates."""
    agreed = 0
    for token, candidate in zip(tokens, candidates, strict=False):
        if token != candidate:
            break
        agreed += 1
    return agreed
