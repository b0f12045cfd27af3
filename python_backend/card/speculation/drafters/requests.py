"""A draft under TensorRT-LLM or vLLM: its requests grow the trees, commits prune them.

A session has one *spine*, the draft's own greedy continuation with the alternatives of each step,
and a few *side branches* behind the likeliest alternatives. Each is a request of its own; all share
the KV blocks of the committed prefix. A commit aborts the requests that it prunes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from card.cache import ROOT, follow
from card.engines.guest.drafts import Chain, Chains, salt_of
from card.speculation.drafters.interface import (
    DraftConfig,
    DraftedSession,
    GrowingTree,
    Model,
    Nodes,
    ReRoot,
)

_UNTOLD = math.log(0.7)
"""Log-probability of a token that comes without one."""

_WORTH_A_REQUEST = math.log(0.05)
"""A less likely side branch, given the committed text, gets no request."""

_MOST_BEHIND = 4
"""A request further behind the committed text starts again, because prefill is faster."""


@dataclass(slots=True, eq=False)
class _Growth:
    """A request that grows the tree.

    node    node of its last token
    path    tokens from the root to `node`
    chain   the request
    behind  committed tokens that it must still generate before it grows the tree again
    given   tokens that were taken from it
    """

    node: int
    path: list[int]
    chain: Chain
    behind: list[int] = field(default_factory=list)
    given: int = 0

    def follow(self, re_root: ReRoot) -> bool:
        """Follow the text to its new root; returns whether the request can."""
        committed, path = re_root.committed, self.path
        if self.behind or committed[: len(path)] == path:
            self.behind += committed[0 if self.behind else len(path) :]
            self.node, self.path = ROOT, []
            return len(self.behind) <= _MOST_BEHIND
        if path[: len(committed)] != committed:
            return False
        self.node, self.path = re_root.surviving.index(self.node), path[len(committed) :]
        return True


@dataclass(slots=True)
class _Requests:
    """The requests of one session.

    is_stuck  a request returned no token, so none is made before the next commit
    """

    spine: _Growth | None = None
    branches: list[_Growth] = field(default_factory=list)
    is_stuck: bool = False

    def all(self) -> list[_Growth]:
        return [*([self.spine] if self.spine else []), *self.branches]

    def drop(self, growth: _Growth) -> None:
        if growth is self.spine:
            self.spine = None
        else:
            self.branches.remove(growth)


class RequestDrafter:
    """Grows trees from requests. Raises the engine's own errors; the process cannot continue
    then."""

    model: ClassVar[Model]

    def __init__(self, model: Chains, config: DraftConfig) -> None:
        self._chains = model
        self._config = config
        self._requests: dict[int, _Requests] = {}

    def open(self, session: DraftedSession) -> None:
        self._requests[session.number] = _Requests()

    def close(self, session: DraftedSession) -> None:
        self._abort(self._requests.pop(session.number).all())

    def commit(self, session: DraftedSession, re_root: ReRoot) -> None:
        """Abort the requests that the text left."""
        requests = self._requests[session.number]
        requests.is_stuck = False
        wrong = [growth for growth in requests.all() if not growth.follow(re_root)]
        for growth in wrong:
            requests.drop(growth)
        self._abort(wrong)

    def propose(self, sessions: Sequence[DraftedSession]) -> list[Nodes | None]:
        missing = [
            (growth.chain, [*session.tokens, *growth.path], tokens)
            for session in sessions
            for growth, tokens in self._missing(session)
        ]
        if missing:
            self._chains.begin(missing, self._config.width)
        self._chains.advance()
        return [self._arrived(session) for session in sessions]

    # --- requests -----------------------------------------------------------------------------

    def _missing(self, session: DraftedSession) -> Iterator[tuple[_Growth, int]]:
        """Requests to make, with the number of tokens of each: the spine first, then the likeliest
        side branches."""
        requests, tree = self._requests[session.number], session.tree
        if requests.is_stuck or tree.room < 1:
            return
        depth = min(self._config.depth, session.tokens_left)
        tip = _tip(tree)
        if requests.spine is None:
            tokens = depth - 1 - tree.depth_of(tip)
            # A spine is one request for many tokens; it is extended once half of it is used.
            if tokens > 0 and (tip == ROOT or 2 * tokens >= depth):
                requests.spine = _growth(session, tip)
                yield requests.spine, tokens
        taken = {growth.node for growth in requests.all()} | {tip}
        for node in _leaves(tree):
            if len(requests.branches) >= self._config.side_branches:
                return
            tokens = min(self._config.side_branch_tokens, depth - 1 - tree.depth_of(node))
            if node in taken or tokens < 1 or tree.score[node] < _WORTH_A_REQUEST:
                continue
            growth = _growth(session, node)
            requests.branches.append(growth)
            yield growth, tokens

    def _abort(self, growths: Sequence[_Growth]) -> None:
        if growths:
            self._chains.end([growth.chain for growth in growths])

    # --- their tokens -------------------------------------------------------------------------

    def _arrived(self, session: DraftedSession) -> Nodes | None:
        """The new nodes of a session since the last call; None if its tree cannot grow."""
        requests, added = self._requests[session.number], _Addition(session.tree)
        growths, passes, wrong = requests.all(), 0, list[_Growth]()
        for growth in growths:
            # `ended` is read first: the queue then holds all tokens before the end.
            ended, given = growth.chain.ended, growth.given
            goes_on = _take(growth, added)
            if growth is requests.spine:
                passes = growth.given - given
            if not goes_on:
                wrong.append(growth)
            if ended or not goes_on:
                requests.drop(growth)
                requests.is_stuck = requests.is_stuck or not growth.given
        self._abort([growth for growth in wrong if not growth.chain.ended])
        if not passes and not added.tokens:
            return Nodes(passes=0, waits=True) if growths else None
        return Nodes(added.tokens, added.parents, added.logprobs, passes)


class TensorRTDrafter(RequestDrafter):
    """Under TensorRT-LLM."""

    model: ClassVar[Model] = "tensorrt_llm"


class VllmDrafter(RequestDrafter):
    """Under vLLM."""

    model: ClassVar[Model] = "vllm"


class _Addition:
    """New nodes of one step, numbered behind those of the tree."""

    def __init__(self, tree: GrowingTree) -> None:
        self._tree = tree
        self._child: dict[tuple[int, int], int] = {}
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.logprobs: list[float] = []

    @property
    def is_full(self) -> bool:
        return len(self.tokens) >= self._tree.room

    def add(self, parent: int, token: int, logprob: float) -> int:
        """The child of `parent` with `token`, added if it is new. The tree must not be full."""
        if parent < len(self._tree):
            known = follow(self._tree.token, self._tree.parent, parent, [token])
            if known:
                return known[0]
        node = len(self._tree) + len(self.tokens)
        if (known_node := self._child.setdefault((parent, token), node)) != node:
            return known_node
        self.tokens.append(token)
        self.parents.append(parent)
        self.logprobs.append(min(logprob, 0.0))
        return node


def _take(growth: _Growth, added: _Addition) -> bool:
    """Add the tokens of a request, each with its alternatives. Returns whether the request may
    continue: not if it left the text, or the tree is full."""
    while growth.chain.arrived:
        token, told = growth.chain.arrived.popleft()
        growth.given += 1
        if growth.behind:
            if token == growth.behind.pop(0):
                continue
            return False
        if added.is_full:
            return False
        node = added.add(growth.node, token, told.get(token, _UNTOLD))
        for other, logprob in told.items():
            if not added.is_full:
                added.add(growth.node, other, logprob)
        growth.node = node
        growth.path.append(token)
    return True


def _growth(session: DraftedSession, node: int) -> _Growth:
    chain = Chain(salt_of(session.request, session.number))
    return _Growth(node, session.tree.path(node), chain)


def _tip(tree: GrowingTree) -> int:
    """The last node of the path along the likeliest children."""
    best: dict[int, int] = {}
    for node, parent in enumerate(tree.parent):
        if parent not in best or tree.score[node] > tree.score[best[parent]]:
            best[parent] = node
    node = ROOT
    while node in best:
        node = best[node]
    return node


def _leaves(tree: GrowingTree) -> list[int]:
    """Nodes without children, likeliest first."""
    parents = set(tree.parent)
    found = [node for node in range(len(tree)) if node not in parents]
    return sorted(found, key=lambda node: -tree.score[node])
