"""What a pacing decides, and what it may look at."""

from __future__ import annotations

from typing import ClassVar, NamedTuple


class Progress(NamedTuple):
    """Where one session stands since its last commit. Each side fills in what it can see.

    num_draft_tokens  γ of the request
    passes            draft passes below the last committed token
    exhausted         the draft adds nothing more before the next commit
    inherited         layers of the tree that the last commit left standing (draft's side)
    ahead             tokens of the best chain below the last committed token, γ at most (target's
                      side; only for a pacing that sets `looks_ahead`)
    forks             some token of that chain has siblings (likewise)
    verifying         candidates in the target's pass under way; 0: none (draft's side)
    begun             the target has committed a token
    apart             the draft takes no cores, and no device, from the target (draft's side)
    awaited           passes of the draft that the controller lets the target wait for; 0: it waits
                      for none
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
    """Who waits for whom: two predicates. The defaults let both run.

    title        what tables call it; "": its key in the registry
    queries      the target looks for candidates
    drafts       the draft follows sessions of this pacing
    waits        the target waits for the draft
    parallel     the draft runs while the target does
    adapts       the controller may stop the draft where it does not pay
    takes_turns  the controller may let the target wait for the draft
    counted_as   what metrics count it as; "": its key
    looks_ahead  `target_may_run` reads `Progress.ahead` or `forks`, which cost a look at the tree
    growth       the growth rule that the draft's tree follows unless the request names one; None:
                 that of the settings

    The loops wait for nobody who is dead, and for nobody who gives nothing for long, whatever a
    pacing says.
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
        """Passes that the draft may make, if it may make one, before it looks at the session again:
        nothing is committed meanwhile."""
        return 1

    def target_may_run(self, progress: Progress) -> bool:
        """Whether the target may verify."""
        return True

    def chunk(self, num_draft_tokens: int) -> int:
        """Candidates that a target which waits has when the chain of γ tokens is whole."""
        return num_draft_tokens
