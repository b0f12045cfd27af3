"""The interface of pacings, and the progress that they decide by."""

from __future__ import annotations

from typing import ClassVar, NamedTuple


class Progress(NamedTuple):
    """One session's progress since its last commit. Each side fills in the fields that it knows.

    num_draft_tokens  γ of the request
    passes            draft passes below the last committed token
    exhausted         the draft adds no more nodes before the next commit
    inherited         layers of the tree that survived the last commit (draft's side)
    ahead             tokens of the best chain below the last committed token, at most γ (target's
                      side; only for a pacing that sets `looks_ahead`)
    forks             a token of that chain has siblings (as `ahead`)
    verifying         candidates in the target's pass under way; 0: there are none (draft's side)
    begun             the target has committed a token
    apart             the draft shares neither cores nor a device with the target (draft's side)
    awaited           draft passes for which the controller makes the target wait; 0: it does not
                      wait
    """

    num_draft_tokens: int
    passes: int = 0
    exhausted: bool = False
    inherited: int = 0
    ahead: int = 0
    forks: bool = False
    verifying: int = 0
    begun: bool = True
    apart: bool = False
    awaited: int = 0


class Pacing:
    """Two predicates decide whether draft and target may run. By default both always may.

    title        its name in tables; "": its key in the registry
    queries      the target queries candidates
    drafts       the draft follows sessions of this pacing
    waits        the target waits for the draft
    parallel     the draft runs while the target runs
    adapts       the controller may stop the draft where it does not pay
    takes_turns  the controller may make the target wait for the draft
    counted_as   its label in metrics; "": its key
    looks_ahead  `target_may_run` reads `Progress.ahead` or `forks`, which cost a read of the tree
    growth       the growth rule of the draft's tree unless the request names one; None: the rule of
                 the settings

    The loops never wait for a dead process, and stop waiting for one that makes no progress.
    """

    title: ClassVar[str] = ""
    queries: ClassVar[bool] = True
    drafts: ClassVar[bool] = True
    waits: ClassVar[bool] = False
    parallel: ClassVar[bool] = True
    adapts: ClassVar[bool] = False
    takes_turns: ClassVar[bool] = False
    counted_as: ClassVar[str] = ""
    looks_ahead: ClassVar[bool] = False
    growth: ClassVar[str | None] = None

    def draft_may_run(self, progress: Progress) -> bool:
        """Whether the draft may make another pass."""
        return True

    def passes_at_once(self, progress: Progress) -> int:
        """Passes that the draft may make, if it may make one, before it looks at the session again.
        No tokens are committed meanwhile."""
        return 1

    def target_may_run(self, progress: Progress) -> bool:
        """Whether the target may verify."""
        return True

    def chunk(self, num_draft_tokens: int) -> int:
        """Candidates of a waiting target when the chain of γ tokens is complete."""
        return num_draft_tokens
