"""TensorRT-LLM's draft model: streamed requests grow the trees, commits prune them.

A session has one *spine*, the draft's own greedy continuation with the alternatives of each step,
and a few *side branches* behind the likeliest alternatives. Each is a request of its own; all share
the KV blocks of the committed prefix. A commit aborts the requests that it prunes.

The runtime's event loop makes, reads and aborts requests. Their tokens wait in a queue until the
draft's loop takes them.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from card.cache import ROOT, follow
from card.engines.tensorrt_llm.requests import draft_arguments
from card.engines.tensorrt_llm.runtime import Runtime, SessionTasks
from card.speculation.drafters.interface import DraftConfig, DraftedSession, Model
from card.speculation.tree import GrowingTree, Nodes, ReRoot

log = logging.getLogger(__name__)

_UNTOLD = math.log(0.7)
"""Log-probability of a token that TensorRT-LLM returns without one."""

_WORTH_A_REQUEST = math.log(0.05)
"""A less likely side branch, given the committed text, gets no request."""

_MOST_BEHIND = 4
"""A request further behind the committed text starts again, because prefill is faster."""

_Told = tuple[int, dict[int, float]]
"""A token of a request, and log-probabilities by id."""


@dataclass(slots=True, eq=False)
class _Growth:
    """A request that grows the tree.

    node     node of its last token
    path     tokens from the root to `node`
    behind   committed tokens that it must still generate before it grows the tree again
    arrived  tokens that the draft's loop has not taken yet; the event loop appends
    ended    the request ended; the event loop sets it
    """

    node: int
    path: list[int]
    output: Any = None  # tensorrt_llm.RequestOutput, once requested
    behind: list[int] = field(default_factory=list)
    arrived: deque[_Told] = field(default_factory=deque)
    given: int = 0
    ended: bool = False

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


class TensorRTDrafter:
    """Grows trees from streamed requests. Raises the engine's own errors; the process cannot
    continue then."""

    model: ClassVar[Model] = "tensorrt_llm"

    def __init__(self, model: Runtime, config: DraftConfig) -> None:
        self._runtime = model
        self._config = config
        self._tasks = SessionTasks(model, config.stall_timeout_s)
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
        self._tasks.check()
        missing = [
            (session, growth, tokens)
            for session in sessions
            for growth, tokens in self._missing(session)
        ]
        if missing:
            self._runtime.call(lambda: self._request(missing))
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
                requests.spine = _Growth(tip, tree.path(tip))
                yield requests.spine, tokens
        taken = {growth.node for growth in requests.all()} | {tip}
        for node in _leaves(tree):
            if len(requests.branches) >= self._config.side_branches:
                return
            tokens = min(self._config.side_branch_tokens, depth - 1 - tree.depth_of(node))
            if node in taken or tokens < 1 or tree.score[node] < _WORTH_A_REQUEST:
                continue
            growth = _Growth(node, tree.path(node))
            requests.branches.append(growth)
            yield growth, tokens

    def _request(self, missing: Sequence[tuple[DraftedSession, _Growth, int]]) -> None:
        """Make requests; runs on the event loop."""
        for session, growth, tokens in missing:
            arguments = draft_arguments(tokens, self._config.width)
            growth.output = self._runtime.generate([*session.tokens, *growth.path], arguments)
            self._tasks.start(self._follow(growth))

    async def _follow(self, growth: _Growth) -> None:
        """Queue the tokens of a request until it ends; runs on the event loop."""
        read = 0
        try:
            async for _ in growth.output:
                self._tasks.progress()
                completion = growth.output.outputs[0]
                tokens = completion.token_ids[read:]
                told = (completion.logprobs or [])[read : read + len(tokens)]
                told = [*told, *[{}] * (len(tokens) - len(told))]
                for token, entries in zip(tokens, told, strict=True):
                    found = {other: entry.logprob for other, entry in entries.items()}
                    growth.arrived.append((token, found))
                read += len(tokens)
        except self._runtime.package.llmapi.RequestError as error:
            log.error("a request of the draft failed: %s", error)
        growth.ended = True

    def _abort(self, growths: Sequence[_Growth]) -> None:
        if growths:
            self._runtime.call(lambda: [growth.output.abort() for growth in growths])

    # --- their tokens -------------------------------------------------------------------------

    def _arrived(self, session: DraftedSession) -> Nodes | None:
        """The new nodes of a session since the last call; None if its tree cannot grow."""
        requests, added = self._requests[session.number], _Addition(session.tree)
        growths, passes, wrong = requests.all(), 0, list[_Growth]()
        for growth in growths:
            # `ended` is read first: the queue then holds all tokens before the end.
            ended, given = growth.ended, growth.given
            goes_on = _take(growth, added)
            if growth is requests.spine:
                passes = growth.given - given
            if not goes_on:
                wrong.append(growth)
            if ended or not goes_on:
                requests.drop(growth)
                requests.is_stuck = requests.is_stuck or not growth.given
        self._abort([growth for growth in wrong if not growth.ended])
        if not passes and not added.tokens:
            return Nodes(passes=0, waits=True) if growths else None
        return Nodes(added.tokens, added.parents, added.logprobs, passes)


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
    while growth.arrived:
        token, told = growth.arrived.popleft()
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
