"""The chain of candidates that a device sends for its session.

A chain is short. Its writer always writes the whole chain, into the half of a double buffer that no
reader uses.
"""

from __future__ import annotations

from collections.abc import Sequence

from card.cache.header import Record
from card.cache.layout import LONGEST_CHAIN
from card.cache.slot import SlotView
from card.cache.tree import MOST_FLIPS, READ_ATTEMPTS, ROOT, Tree

_PARENTS = list(range(ROOT, LONGEST_CHAIN + ROOT))
_SCORES = [0.0] * LONGEST_CHAIN
"""A device sends tokens without scores. The target measures their acceptance rate."""


def write_chain(record: Record, session_id: int, root_length: int, tokens: Sequence[int]) -> None:
    """Publish at most `LONGEST_CHAIN` candidates that follow `root_length` tokens of prompt and
    output."""
    half = (record["chain_flip"] + 1) & 1
    record.write("chain_session_id", half, [session_id])
    record.write("chain_root_length", half, [root_length])
    record.write("chain_token", half * LONGEST_CHAIN, tokens)
    record.write("chain_length", half, [len(tokens)])
    record["chain_flip"] = (record["chain_flip"] + 1) & MOST_FLIPS


def read_chain(record: Record, session_id: int, vocabulary: int) -> Tree | None:
    """The chain of the session with this id, as a tree without branches; None if there is no valid
    chain."""
    for _ in range(READ_ATTEMPTS):
        flip = record["chain_flip"]
        half = flip & 1
        if record.words("chain_session_id")[half] != session_id:
            return None
        length = record.words("chain_length")[half]
        root_length = record.words("chain_root_length")[half]
        token = record["chain_token"][half, :length].tolist()
        if record["chain_flip"] == flip:
            return Tree.checked(root_length, token, _PARENTS[:length], _SCORES[:length], vocabulary)
    return None


def chain_begins_at(record: Record, session_id: int) -> int | None:
    """Length of prompt and output that the session's chain follows; None: there is no chain."""
    half = record["chain_flip"] & 1
    if record.words("chain_session_id")[half] != session_id:
        return None
    return int(record.words("chain_root_length")[half])


class RemoteSlot(SlotView):
    """The view of `RemoteDrafts`: publishes the chains that devices send."""

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt, valid while the slot is open with the session id read before."""
        return int(self._record["prompt_length"])

    def publish(self, session_id: int, root_length: int, tokens: Sequence[int]) -> None:
        """Replace the session's chain; see `write_chain`."""
        write_chain(self._record, session_id, root_length, tokens)
