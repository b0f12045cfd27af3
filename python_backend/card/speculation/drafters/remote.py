"""A device drafts with its own model and sends what it would write (SLED, arXiv 2506.09397).

Candidates are accepted only where the target writes the same, so tokens alone cross the network.
Every message says the whole chain that the device stands behind, from a place in the output that it
has seen committed. So a message that is lost, late or twice there does no harm.

This drafter runs outside the draft's process, which leaves its sessions alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

REMOTE = "remote"
"""Its registry key."""


@dataclass(frozen=True, slots=True)
class DeviceDraft:
    """What a device would write.

    position  output tokens that come before
    tokens    ids, in order
    """

    position: int
    tokens: Sequence[int]

    def behind(self, committed: Sequence[int]) -> Sequence[int]:
        """What of it is still to come, where the output goes on with `committed` from `position`
        on; nothing where the text went another way."""
        known = len(committed)
        if list(self.tokens[:known]) != list(committed):
            return ()
        return self.tokens[known:]
