"""One session as the draft's loop follows it."""

from __future__ import annotations

from dataclasses import dataclass

from card.cache import DraftSlot, SlotRequest
from card.constraints.compiler import Constraint
from card.speculation.drafters import DraftedSession, Drafter
from card.speculation.pacing import Pacing, Progress
from card.speculation.tree import GrowingTree, Nodes


@dataclass(slots=True)
class FollowedSession:
    """A session's slot, what its drafter sees of it, and how far the draft got.

    passes     since the last commit
    exhausted  the drafter adds nothing more before the next commit
    inherited  layers of the tree that the last commit left standing
    apart      the draft takes no cores, and no device, from the target
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
        constraint: Constraint | None = None,
        *,
        apart: bool = False,
    ) -> FollowedSession:
        """Start at the prompt and what the target may have committed already."""
        slot.reset_counters()
        committed = slot.output(0, slot.committed(session_id)).tolist()
        if constraint is not None:
            constraint.advance(committed)
        tokens = [*request.prompt.tolist(), *committed]
        tree = GrowingTree(slot.capacity)
        drafted = DraftedSession(slot.index, request, tokens, tree, constraint)
        session = cls(slot, session_id, pacing, drafter, drafted, apart)
        drafter.open(drafted)
        session._publish_tree()
        return session

    @property
    def committed(self) -> int:
        """Output tokens that the tree stands behind."""
        return len(self.drafted.tokens) - len(self.drafted.request.prompt)

    def is_unwanted(self, *, all_stopped: bool) -> bool:
        """Whether the target wants no candidates of this session for now: its text is not followed
        meanwhile.

        all_stopped  the target wants none of any session whose pacing adapts
        """
        length = len(self.drafted.request.prompt) + self.slot.committed(self.session_id)
        stopped = length < self.slot.stopped_until(self.session_id)
        return stopped or (all_stopped and self.pacing.adapts)

    @property
    def awaited(self) -> int:
        """Passes for which the controller lets the target wait; 0: for none."""
        return self.slot.awaited(self.session_id) if self.pacing.takes_turns else 0

    @property
    def is_awaited(self) -> bool:
        """Whether the target waits for the draft."""
        return self.pacing.waits or self.awaited > 0

    # --- correct ------------------------------------------------------------------------------

    def follow_commits(self) -> None:
        """Take over what the target committed since the last look."""
        known, committed = self.committed, self.slot.committed(self.session_id)
        if committed > known:
            self.re_root(self.slot.output(known, committed).tolist())

    def re_root(self, committed: list[int]) -> None:
        """The tree below the last committed token survives."""
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
        """How many passes the drafter may make before the next look; 0: there is nothing to add, or
        the pacing allows none."""
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
        """Publish what the drafter proposed; the passes that it made, also over text alone."""
        if nodes is None:
            self.exhausted = True
            self.slot.exhaust()
            return 0
        self.passes += nodes.passes
        tree = self.drafted.tree
        first, height = len(tree), tree.height
        tree.add(nodes)
        layers = max(tree.depth[first:], default=-1) + 1 - height
        self.slot.count_growth(max(0, layers), nodes.saved)
        if nodes.passes or len(tree) > first:
            self.slot.append(
                tree.token[first:], tree.parent[first:], tree.score[first:], self.passes
            )
        return 0 if nodes.waits else max(1, nodes.passes)

    def _publish_tree(self) -> None:
        """What is left of the tree below the last committed token."""
        tree, length = self.drafted.tree, len(self.drafted.tokens)
        self.slot.replace(self.session_id, length, tree.token, tree.parent, tree.score)
