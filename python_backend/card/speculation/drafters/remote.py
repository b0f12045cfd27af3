"""A device drafts with its own model and sends its tokens (SLED, arXiv 2506.09397).

Candidates are accepted only where the target chooses the same token, so only tokens cross the
network. Every message holds the device's whole chain, from a committed position of the output on.
So lost, late and repeated messages do no harm.

This drafter runs outside the draft's process, which does not draft for its sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

REMOTE = "remote"
"""Its registry key."""


@dataclass(frozen=True, slots=True)
class DeviceDraft:
    """The chain of a device.

    position  number of output tokens before the chain
    tokens    ids, in order
    """

    position: int
    tokens: Sequence[int]

    def behind(self, committed: Sequence[int]) -> Sequence[int]:
        """The rest of the chain behind `committed`, the output from `position` on; empty where the
        text differs from the chain."""
        known = len(committed)
        if list(self.tokens[:known]) != list(committed):
            return ()
        return self.tokens[known:]
