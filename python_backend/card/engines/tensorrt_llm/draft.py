"""The draft's side: streamed requests grow the candidate trees, commits prune them.

A session has one *spine*, the draft's own greedy continuation, whose alternatives per step hang
beside it, and a few *side branches* behind the likeliest alternatives. Each is a request of its
own; all share the KV blocks of the committed prefix. What a commit prunes is aborted.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from card.cache import ROOT, Decoding, DraftSlot, Pool, SlotRequest, SlotWatch
from card.engines.tensorrt_llm.runtime import Runtime
from card.engines.tensorrt_llm.sampling import draft_arguments
from card.engines.tensorrt_llm.tasks import SessionTasks
from card.engines.tensorrt_llm.tree import CandidateTree
from card.pacing import SETTLED, draft_may_run
from card.settings import Settings

log = logging.getLogger(__name__)

_UNTOLD = math.log(0.7)
"""Log-probability of a token that came without one."""

_WORTH_A_REQUEST = math.log(0.05)
"""A side branch less likely than this, given the committed text, is not grown."""


_MOST_BEHIND = 4
"""A request that is further behind the committed text starts anew: prefill catches up faster."""


class _Growth:
    """A request that grows the tree.

    node    what its last token became
    behind  committed tokens that it has yet to give before it grows anything again
    """

    def __init__(self, node: int, output: Any) -> None:
        self.node = node
        self.behind: list[int] = []
        self.output = output
        self.read = 0
        self.is_wanted = True

    def follows(self, committed: list[int], path: list[int]) -> bool:
        """Whether it still goes where the text went, standing at the end of `path`."""
        if self.behind or committed[: len(path)] == path:
            self.behind += committed[0 if self.behind else len(path) :]
            return len(self.behind) <= _MOST_BEHIND
        return path[: len(committed)] == committed

    def abort(self) -> None:
        self.is_wanted = False
        self.output.abort()


class DraftSession:
    """One session's committed text and the tree below it. Lives on the engine's event loop."""

    def __init__(
        self,
        slot: DraftSlot,
        generation: int,
        request: SlotRequest,
        runtime: Runtime,
        tasks: SessionTasks,
        settings: Settings,
    ) -> None:
        self.slot = slot
        self.generation = generation
        self._request = request
        self._runtime = runtime
        self._tasks = tasks
        self._speculation = settings.speculation
        self._how = settings.draft.tensorrt_llm
        self._tree = CandidateTree(slot.capacity)
        self._spine: _Growth | None = None
        self._branches: list[_Growth] = []
        self._passes = 0
        slot.reset_counters()
        output = slot.output(0, slot.committed(generation)).tolist()
        self._tokens: list[int] = [*request.prompt.tolist(), *output]
        self._publish_all()
        self.grow()

    @property
    def committed(self) -> int:
        """Output tokens that the tree stands behind."""
        return len(self._tokens) - len(self._request.prompt)

    def close(self) -> None:
        for growth in self._growths():
            growth.abort()
        self._spine, self._branches = None, []

    # --- correct ------------------------------------------------------------------------------

    def follow_commits(self) -> None:
        """Take over what the target committed since the last look."""
        self.slot.count_time(runs=bool(self._growths()))
        committed = self.slot.committed(self.generation)
        if committed > self.committed:
            self.re_root(self.slot.output(self.committed, committed).tolist())

    def re_root(self, committed: list[int]) -> None:
        """Keep the tree below the last committed token, abort what grows elsewhere."""
        for growth in self._growths():
            if not growth.follows(committed, self._tree.path(growth.node)):
                growth.abort()
        self._forget_unwanted()
        survives = self._tree.re_root(committed)
        for growth in self._growths():
            growth.node = survives.get(growth.node, ROOT)
        self._tokens.extend(committed)
        self._passes = 0
        self.slot.count_re_root(restarted=not survives)
        self._publish_all()
        self.grow()

    # --- grow ---------------------------------------------------------------------------------

    def grow(self) -> None:
        """Request what is missing: the spine first, then the likeliest side branches."""
        if not draft_may_run(self._request.decoding, self._request.gamma, self._passes):
            return
        depth = self._depth()
        if self._spine is None:
            node = self._tree.tip()
            wanted = depth - 1 - self._tree.depth_of(node)
            # One request for many tokens: the rest of a spine waits until half of it is used.
            if wanted > 0 and (node == ROOT or 2 * wanted >= depth):
                self._spine = self._request_behind(node, wanted)
        taken = {growth.node for growth in self._growths()} | {self._tree.tip()}
        for node in self._tree.leaves():
            if len(self._branches) >= self._how.side_branches or node == ROOT:
                break
            wanted = min(self._how.side_branch_tokens, depth - 1 - self._tree.depth_of(node))
            if node in taken or wanted < 1 or self._tree.score[node] < _WORTH_A_REQUEST:
                continue
            growth = self._request_behind(node, wanted)
            if growth is None:
                break
            self._branches.append(growth)
        if self._spine is None and not self._branches and self._passes < SETTLED:
            self._passes = SETTLED
            self._publish_added(len(self._tree))

    def _request_behind(self, node: int, wanted: int) -> _Growth | None:
        if self._tree.is_full:
            return None
        prompt = [*self._tokens, *self._tree.path(node)]
        arguments = draft_arguments(wanted, self._speculation.width)
        growth = _Growth(node, self._runtime.generate(prompt, arguments))
        self._tasks.start(self._follow(growth))
        return growth

    async def _follow(self, growth: _Growth) -> None:
        """Hang what a request generates into the tree until it ends or is pruned."""
        try:
            async for _ in growth.output:
                self._tasks.progress()
                if growth.is_wanted:
                    self._hang(growth)
        except self._runtime.package.llmapi.RequestError as error:
            log.error("a request for slot %d failed: %s", self.slot.index, error)
            growth.read = 0
        if growth.is_wanted:
            growth.is_wanted = False
            self._forget_unwanted()
            if growth.read:  # what gave nothing would give nothing again
                self.grow()

    def _hang(self, growth: _Growth) -> None:
        """Add the new tokens of a request, each with the alternatives beside it, and publish."""
        completion = growth.output.outputs[0]
        tokens = completion.token_ids[growth.read :]
        told = (completion.logprobs or [])[growth.read : growth.read + len(tokens)]
        told = [*told, *[{}] * (len(tokens) - len(told))]
        growth.read += len(tokens)
        first = len(self._tree)
        for token, alternatives in zip(tokens, told, strict=True):
            if growth.behind:
                if token == growth.behind.pop(0):
                    continue
                growth.abort()
            if self._tree.is_full:
                growth.abort()
            if not growth.is_wanted:
                break
            chosen = alternatives.get(token)
            node = self._tree.add(growth.node, token, _UNTOLD if chosen is None else chosen.logprob)
            for other, entry in alternatives.items():
                if not self._tree.is_full:
                    self._tree.add(growth.node, other, entry.logprob)
            growth.node = node
        if growth is self._spine:
            self._passes += len(tokens)
        self._publish_added(first)
        self._forget_unwanted()
        if self._spine is None or len(self._branches) < self._how.side_branches:
            self.grow()

    def _depth(self) -> int:
        """How far the tree may run ahead of the text."""
        request = self._request
        left = len(request.prompt) + request.max_tokens - len(self._tokens)
        return min(self._speculation.depth, left)

    # --- bookkeeping --------------------------------------------------------------------------

    def _growths(self) -> list[_Growth]:
        return [*([self._spine] if self._spine else []), *self._branches]

    def _forget_unwanted(self) -> None:
        if self._spine is not None and not self._spine.is_wanted:
            self._spine = None
        self._branches = [branch for branch in self._branches if branch.is_wanted]

    def _publish_all(self) -> None:
        self.slot.replace(self.generation, len(self._tokens), *self._tree.arrays())

    def _publish_added(self, first: int) -> None:
        self.slot.append(*self._tree.arrays(first), self._passes)


class TensorRTDraftLoop:
    """Grows a tree for every open slot; call `step` again and again from one thread.

    Raises what the engine raised: the process is of no use then.
    """

    def __init__(self, runtime: Runtime, pool: Pool, settings: Settings) -> None:
        self._runtime = runtime
        self._pool = pool
        self._settings = settings
        self._slots = [pool.draft_slot(index) for index in range(pool.geometry.slots)]
        self._watch = SlotWatch(pool)
        self._sessions: dict[int, DraftSession] = {}
        self._tasks = SessionTasks(runtime, settings.draft.tensorrt_llm.stall_timeout_s)

    @property
    def is_at_rest(self) -> bool:
        """Never: what the runtime does is looked after at every step."""
        return False

    def step(self) -> bool:
        """Follow what was opened, committed and closed; whether there was anything."""
        self._tasks.check()
        if not self._watch.changed() and not self._has_commits():
            return False
        self._runtime.call(self._look)
        return True

    def abandon(self) -> None:
        """The pool is another: end every request without a word."""

        def close() -> None:
            for session in self._sessions.values():
                session.close()

        self._runtime.call(close)

    def _has_commits(self) -> bool:
        return any(
            session.slot.committed(session.generation) > session.committed
            for session in self._sessions.values()
        )

    # --- on the event loop --------------------------------------------------------------------

    def _look(self) -> None:
        for index, session in list(self._sessions.items()):
            if session.slot.is_open(session.generation):
                session.follow_commits()
            else:
                self._sessions.pop(index).close()
        for slot, generation, request in self._watch.opened(self._slots, self._sessions):
            if request.decoding is not Decoding.AUTOREGRESSIVE:
                self._sessions[slot.index] = DraftSession(
                    slot, generation, request, self._runtime, self._tasks, self._settings
                )
