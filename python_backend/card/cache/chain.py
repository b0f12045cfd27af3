"""The chain of candidates that a device drafted, in its slot: one writer, and a reader that checks.

The chain is short and always written whole, in the half of a double buffer that nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from card.cache.layout import LONGEST_CHAIN
from card.cache.record import Record
from card.cache.tree import ROOT, Tree

_MOST_FLIPS = (1 << 62) - 1
_READ_ATTEMPTS = 3
_PARENTS = list(range(ROOT, LONGEST_CHAIN + ROOT))
_SCORES = [0.0] * LONGEST_CHAIN
"""A device sends tokens alone. Whoever verifies learns how often they are right."""


def write_chain(record: Record, session_id: int, root_length: int, tokens: Sequence[int]) -> None:
    """Publish the candidates behind `root_length` tokens of prompt and output, `LONGEST_CHAIN` at
    most."""
    half = (record["chain_flip"] + 1) & 1
    record.write("chain_session_id", half, [session_id])
    record.write("chain_root_length", half, [root_length])
    record.write("chain_token", half * LONGEST_CHAIN, tokens)
    record.write("chain_length", half, [len(tokens)])
    record["chain_flip"] = (record["chain_flip"] + 1) & _MOST_FLIPS


def read_chain(record: Record, session_id: int, vocabulary: int) -> Tree | None:
    """The chain of the session with this id as a tree without branches; None: there is none, or
    what stands there is none."""
    for _ in range(_READ_ATTEMPTS):
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
    """Length of prompt and output behind which the session's chain stands; None: it has none."""
    half = record["chain_flip"] & 1
    if record.words("chain_session_id")[half] != session_id:
        return None
    return int(record.words("chain_root_length")[half])
