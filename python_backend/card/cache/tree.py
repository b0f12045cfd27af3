"""Candidate trees: how the draft publishes them, validated snapshots, and candidates.

A reader copies what the draft or a device published and checks the copy before it uses it. What a
query takes from a snapshot decides no token: poor candidates cost only speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan
from operator import lt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from card.cache.header import Record
from card.cache.layout import DRAFT_COUNTERS
from card.cache.slot import SlotView, Stopwatch
from card.cache.states import States, read_states

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


MOST_FLIPS = (1 << 62) - 1
READ_ATTEMPTS = 3


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


Integers = Sequence[int] | NDArray[np.int64]
Reals = Sequence[float] | NDArray[np.float64]


class DraftSlot(SlotView):
    """The view of the draft: publishes trees."""

    def __init__(self, record: Record, index: int) -> None:
        super().__init__(record, index)
        self._stopwatch = Stopwatch(record, "draft_running_ns", "draft_idle_ns")

    def stopped_until(self, session_id: int) -> int:
        """Length of prompt and output below which the target wants no candidates."""
        record = self._record
        if record["commit_session_id"] != session_id:
            return 0
        return int(record["stopped_until"])

    def replace(
        self,
        session_id: int,
        root_length: int,
        token: Integers,
        parent: Integers,
        score: Reals,
    ) -> None:
        """Publish a whole tree in the half that no reader uses, then flip the halves."""
        record = self._record
        half = (record["flip"] + 1) & 1
        record.write("tree_session_id", half, [session_id])
        record.write("root_length", half, [root_length])
        self._write_nodes(half * self.capacity, token, parent, score)
        record.write("node_count", half, [len(token)])
        record.write("passes", half, [0])
        record.write("exhausted", half, [0])
        # A count that stands at its greatest value could never be raised again.
        record["flip"] = (record["flip"] + 1) & MOST_FLIPS

    def append(
        self,
        token: Integers,
        parent: Integers,
        score: Reals,
        passes: int,
    ) -> None:
        """Add nodes to the published tree: records first, count last.

        passes  that the draft made since this root; a waiting target counts them
        """
        record = self._record
        half = record["flip"] & 1
        count = record.words("node_count")[half]
        self._write_nodes(half * self.capacity + count, token, parent, score)
        record.write("node_count", half, [count + len(token)])
        record.write("passes", half, [passes])

    def _write_nodes(self, at: int, token: Integers, parent: Integers, score: Reals) -> None:
        record = self._record
        record.write("node_token", at, token)
        record.write("node_parent", at, parent)
        record.write("node_score", at, score)

    def exhaust(self) -> None:
        """Tell a waiting target that the draft adds no more nodes to this tree."""
        record = self._record
        record.write("exhausted", record["flip"] & 1, [1])

    def verifying(self, session_id: int) -> int:
        """Candidates in the target's pass that is under way for `session_id`."""
        record = self._record
        return int(record["verifying"]) if record["commit_session_id"] == session_id else 0

    def awaited(self, session_id: int) -> int:
        """Draft passes below each commit for which the target waits; 0: it does not wait."""
        record = self._record
        return int(record["awaited"]) if record["commit_session_id"] == session_id else 0

    def states(self, session_id: int, start: int) -> tuple[int, States]:
        """The first position and the hidden states of the session's tokens from position `start` of
        prompt and output on, as far as the target published them and the slot still holds them."""
        return read_states(self._record, session_id, start)

    def count_re_root(self, *, restarted: bool, lost_layers: int = 0) -> None:
        record = self._record
        record["re_roots"] += 1
        if restarted:
            record["restarts"] += 1
        if lost_layers:
            record["lost_layers"] += lost_layers

    def count_growth(self, layers: int, saved_rows: int) -> None:
        """Count nodes that the draft added to the tree."""
        if layers:
            self._record["layers"] += layers
        if saved_rows:
            self._record["saved_rows"] += saved_rows

    def count_time(self, *, runs: bool) -> None:
        """Count the time since the last call as growing (`runs`) or as idle."""
        self._stopwatch.look(runs)

    def reset_counters(self) -> None:
        for name in DRAFT_COUNTERS:
            self._record[name] = 0
        self._stopwatch.restart()


class DraftProgress(NamedTuple):
    """The draft's progress below one root.

    passes     that the draft made
    exhausted  the draft adds no more nodes before the next commit
    """

    passes: int = 0
    exhausted: bool = False


NO_PROGRESS = DraftProgress()
