"""The draft's loop: follow commits, re-root, propose, publish."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from card.cache import ANY, DraftSlot, Pool, SlotRequest, SlotWatch
from card.constraints.compiler import GuideCompiler
from card.constraints.constraint import DraftConstraint
from card.speculation.drafters import DraftedSession, Drafter
from card.speculation.drafters.interface import GrowingTree, Nodes
from card.speculation.pacing import PACINGS, Pacing, Progress


@dataclass(slots=True)
class FollowedSession:
    """A session's slot, its drafter's view of it, and the draft's progress.

    passes     draft passes since the last commit
    exhausted  the drafter adds no more nodes before the next commit
    inherited  layers of the tree that survived the last commit
    apart      the draft shares neither cores nor a device with the target
    """

    slot: DraftSlot
    session_id: int
    pacing: Pacing
    drafter: Drafter
    drafted: DraftedSession
    apart: bool = False
    passes: int = 0
    exhausted: bool = False
    inherited: int = 0

    @classmethod
    def follow(
        cls,
        slot: DraftSlot,
        session_id: int,
        request: SlotRequest,
        pacing: Pacing,
        drafter: Drafter,
        constraint: DraftConstraint | None = None,
        *,
        apart: bool = False,
    ) -> FollowedSession:
        """Start behind the prompt and the tokens that the target has committed."""
        slot.reset_counters()
        committed = slot.output(0, slot.committed(session_id)).tolist()
        if constraint is not None:
            constraint.advance(committed)
        tokens = [*request.prompt.tolist(), *committed]
        tree = GrowingTree(slot.capacity)
        states = partial(slot.states, session_id)
        drafted = DraftedSession(slot.index, request, tokens, tree, constraint, states=states)
        session = cls(slot, session_id, pacing, drafter, drafted, apart)
        drafter.open(drafted)
        session._publish_tree()
        return session

    @property
    def committed(self) -> int:
        """Output tokens before the tree's root."""
        return len(self.drafted.tokens) - len(self.drafted.request.prompt)

    def is_unwanted(self, *, all_stopped: bool) -> bool:
        """Whether the target stopped the draft for this session; the draft then does not follow
        its text.

        all_stopped  the target stopped the draft for all sessions with an adaptive pacing
        """
        length = len(self.drafted.request.prompt) + self.slot.committed(self.session_id)
        stopped = length < self.slot.stopped_until(self.session_id)
        return stopped or (all_stopped and self.pacing.adapts)

    @property
    def awaited(self) -> int:
        """Draft passes for which the target waits; 0: it does not wait."""
        return self.slot.awaited(self.session_id) if self.pacing.takes_turns else 0

    @property
    def is_awaited(self) -> bool:
        """Whether the target waits for the draft."""
        return self.pacing.waits or self.awaited > 0

    # --- correct ------------------------------------------------------------------------------

    def follow_commits(self) -> None:
        """Take over the tokens that the target committed since the last look."""
        known, committed = self.committed, self.slot.committed(self.session_id)
        if committed > known:
            self.re_root(self.slot.output(known, committed).tolist())

    def re_root(self, committed: list[int]) -> None:
        """Keep only the tree below the last committed token."""
        drafted = self.drafted
        drafted.tokens += committed
        if drafted.constraint is not None:
            drafted.constraint.advance(committed)
        height = drafted.tree.height
        outcome = drafted.tree.re_root(committed)
        self.drafter.commit(drafted, outcome)
        self.passes, self.exhausted, self.inherited = 0, False, drafted.tree.height
        self._publish_tree()
        matched = len(outcome.path)
        lost = height - matched - drafted.tree.height
        self.slot.count_re_root(restarted=matched < len(committed), lost_layers=lost)

    # --- grow ---------------------------------------------------------------------------------

    def allowed_passes(self) -> int:
        """Passes that the drafter may make before the next look; 0: there is nothing to add, or the
        pacing allows none."""
        if self.exhausted:
            return 0
        progress = Progress(
            self.drafted.request.num_draft_tokens,
            passes=self.passes,
            inherited=self.inherited,
            verifying=self.slot.verifying(self.session_id),
            begun=self.committed > 0,
            apart=self.apart,
            awaited=self.awaited,
        )
        may_run = self.pacing.draft_may_run(progress)
        return self.pacing.passes_at_once(progress) if may_run else 0

    def grow(self, nodes: Nodes | None) -> int:
        """Publish the drafter's nodes; returns its passes, with those that only read text."""
        if nodes is None:
            self.exhausted = True
            self.slot.exhaust()
            return 0
        self.passes += nodes.passes
        tree = self.drafted.tree
        height = tree.height
        if nodes.replaces:
            tree.clear()
        first = len(tree)
        tree.add(nodes)
        layers = max(tree.depth[first:], default=-1) + 1 - height
        self.slot.count_growth(max(0, layers), nodes.saved)
        if nodes.replaces:
            self._publish_tree()
            first = len(tree)
        if nodes.passes or len(tree) > first:
            self.slot.append(
                tree.token[first:], tree.parent[first:], tree.score[first:], self.passes
            )
        return 0 if nodes.waits else max(1, nodes.passes)

    def _publish_tree(self) -> None:
        """Publish the rest of the tree, below the last committed token."""
        tree, length = self.drafted.tree, len(self.drafted.tokens)
        self.slot.replace(self.session_id, length, tree.token, tree.parent, tree.score)


@dataclass(slots=True)
class DraftTimes:
    """Nanoseconds since the loop began: `busy` in passes, `idle` with open sessions but nothing to
    grow."""

    passes: int = 0
    busy: int = 0
    idle: int = 0


class DraftLoop:
    """Grows a tree for every open slot; call `step` again and again from one thread.

    drafters  by registry key; a request of another drafter is decoded without candidates
    guides    compiles guides of requests; None: candidates ignore guides
    apart     the drafters share neither cores nor a device with the target
    pass_ms   time of a drafter's pass while the target does not compute; 0: unknown
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        pool: Pool,
        guides: GuideCompiler | None = None,
        *,
        apart: bool = False,
        pass_ms: float = 0.0,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        pool.tell_draft_pass(pass_ms)
        self.times = DraftTimes()
        self._drafters = drafters
        self._guides = guides
        self._apart = apart
        self._pool = pool
        self._slots = [pool.draft_slot(index) for index in range(pool.geometry.slots)]
        self._watch = SlotWatch(pool.slots)
        self._sessions: dict[int, FollowedSession] = {}
        self._idle_since: int | None = None
        self._clock_ns = clock_ns

    def step(self) -> bool:
        """Make one pass over all sessions that may grow; False if there was nothing to do."""
        started = self._clock_ns()
        if self._watch.look():
            self._drop_closed()
            self._follow_opened()
        may_run = self._take_turns()
        # Every drafter is called, even without a session: its engine may have failed.
        passes = max([self._grow(name, may_run) for name in self._drafters], default=0)
        self._count_idle(started)
        if not passes:
            self._idle_since = started if self._sessions else None
            return False
        self.times.passes += passes
        self.times.busy += self._clock_ns() - started
        self._tell_times()
        return True

    @property
    def is_idle(self) -> bool:
        """Whether the loop has no work before `card` or the target rings the slot bell."""
        stopped = self._pool.draft_stopped
        return all(session.is_unwanted(all_stopped=stopped) for session in self._sessions.values())

    def abandon(self) -> None:
        """End every session, because the pool was replaced."""
        for session in self._sessions.values():
            session.drafter.close(session.drafted)
        self._sessions.clear()

    def _take_turns(self) -> list[FollowedSession]:
        """Sessions that may run, brought up to the target's commits; the others wait. Sessions for
        which the target stopped the draft are left as they are."""
        may_run, stopped = [], self._pool.draft_stopped
        for session in self._sessions.values():
            wanted = not session.is_unwanted(all_stopped=stopped)
            if wanted:
                session.follow_commits()
            passes = session.allowed_passes() if wanted else 0
            if passes:
                session.drafted.passes = passes
                may_run.append(session)
            else:
                session.slot.count_time(runs=False)
        return may_run

    def _grow(self, name: str, sessions: list[FollowedSession]) -> int:
        """Let the drafter of this name propose; returns the passes that it made."""
        drafter = self._drafters[name]
        own = [session for session in sessions if session.drafter is drafter]
        proposed = drafter.propose([session.drafted for session in own])
        passes = 0
        for session, nodes in zip(own, proposed, strict=True):
            session.slot.count_time(runs=nodes is not None)
            passes = max(passes, session.grow(nodes))
        if any(session.is_awaited and not session.allowed_passes() for session in own):
            self._pool.slot_bell.ring()
        return passes

    def _tell_times(self) -> None:
        header = self._pool.header
        header["draft_busy_ns"] = self.times.busy
        header["draft_passes"] = self.times.passes

    def _count_idle(self, now: int) -> None:
        """Count the time since the last step as idle, if that step found nothing to do."""
        if self._idle_since is not None:
            self.times.idle += now - self._idle_since
            self._pool.header["draft_waiting_ns"] = self.times.idle
            self._idle_since = None

    def _drop_closed(self) -> None:
        gone = [
            index
            for index, session in self._sessions.items()
            if not session.slot.is_open(session.session_id)
        ]
        for index in gone:
            session = self._sessions.pop(index)
            session.drafter.close(session.drafted)

    def _follow_opened(self) -> None:
        for slot, session_id, request in self._watch.opened(self._slots, self._sessions):
            pacing, drafter = PACINGS[request.pacing], self._drafter_of(request)
            if request.growth == ANY and pacing.growth is not None:
                request = replace(request, growth=pacing.growth)
            if pacing.drafts and drafter is not None:
                self._sessions[slot.index] = FollowedSession.follow(
                    slot,
                    session_id,
                    request,
                    pacing,
                    drafter,
                    self._constraint(request),
                    apart=self._apart,
                )

    def _drafter_of(self, request: SlotRequest) -> Drafter | None:
        """The drafter that the request names; None if this process has none of that name."""
        if request.drafter == ANY:
            return next(iter(self._drafters.values()), None)
        return self._drafters.get(request.drafter)

    def _constraint(self, request: SlotRequest) -> DraftConstraint | None:
        if request.guide is None or self._guides is None:
            return None
        return self._guides.draft_constraint(request.guide)
