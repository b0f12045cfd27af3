"""The messages of drafting devices to `remote`: their tensors, bounds and chains in the pool."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from card.cache import LONGEST_CHAIN, Pool, digest_of
from card.serving.requests.refusal import Refusal, invalid, missing
from card.speculation.drafters.remote import DeviceDraft

DRAFT_KEY, POSITION, CANDIDATES = "draft_key", "position", "candidates"
DTYPES = {DRAFT_KEY: "BYTES", POSITION: "INT32", CANDIDATES: "INT32"}
"""Dtype of every tensor; each has one dimension, and all but the candidates have one element."""

TAKEN = "taken"
"""The only output: whether any candidate was still useful."""


def check_sizes(shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse missing, unknown and too large tensors, before reading any of them.

    Raises `Refusal`.
    """
    for name in DTYPES:
        if name not in shapes:
            raise missing(name, "draft_key, position and candidates")
    for name, shape in shapes.items():
        if name not in DTYPES:
            raise invalid("input", name, f"one of {', '.join(DTYPES)}")
        most = LONGEST_CHAIN if name == CANDIDATES else 1
        if not 1 <= (count := math.prod(shape)) <= most:
            allowed = f"1 to {most}" if most > 1 else "1"
            raise _refused(name, f"has {count} elements; it must have {allowed}")


def read_draft(arrays: Mapping[str, NDArray[Any]]) -> tuple[bytes, DeviceDraft]:
    """The digest of the key, and the draft, from tensors of checked sizes."""
    key: bytes = arrays[DRAFT_KEY].reshape(-1)[0]
    draft = DeviceDraft(int(arrays[POSITION].reshape(-1)[0]), arrays[CANDIDATES].tolist())
    return digest_of(key.decode("utf-8", "replace")), draft


class RemoteDrafts:
    """Takes the messages of all devices. One thread calls it.

    A message costs one scan of the slots. A device sends at most one message per drafted token, and
    a chain holds `LONGEST_CHAIN` tokens, so more messages between two commits are refused.
    """

    def __init__(self, pool: Pool, vocabulary: int) -> None:
        self._pool = pool
        self._vocabulary = vocabulary
        self._slots = [pool.remote_slot(index) for index in range(pool.geometry.slots)]
        self._messages: dict[int, tuple[int, int, int]] = {}
        """By slot: session id, committed tokens, messages since that commit."""

    def take(self, digest: bytes, draft: DeviceDraft) -> bool:
        """Publish the draft of the device with a key of this digest; returns whether any candidate
        was left to publish.

        Raises `Refusal` for an invalid message.
        """
        if not all(0 <= token < self._vocabulary for token in draft.tokens):
            raise _refused(CANDIDATES, f"must be token ids, each 0 to {self._vocabulary - 1}")
        if draft.position < 0:
            raise _refused(POSITION, f"is {draft.position}; it must be 0 or more")
        index = self._pool.drafted_by(digest)
        if index is None:
            raise _refused(
                DRAFT_KEY,
                "names no session that is open here; send the request for a text first, with this "
                "draft_key",
            )
        slot = self._slots[index]
        session_id = slot.session_id
        length = slot.committed(session_id)
        if draft.position > length:
            raise _refused(
                POSITION,
                f"is {draft.position}; it must be at most {length}, the tokens that are committed",
            )
        self._count(index, session_id, length)
        left = draft.behind(slot.output(draft.position, length).tolist())
        # A slot may change between these reads; only this key's session has this session id.
        if not left or self._pool.drafted_by(digest) != index:
            return False
        slot.publish(session_id, slot.prompt_length + length, left)
        return True

    def _count(self, index: int, session_id: int, committed: int) -> None:
        *known, messages = self._messages.get(index, (0, 0, 0))
        messages = messages + 1 if known == [session_id, committed] else 1
        self._messages[index] = session_id, committed, messages
        if messages > LONGEST_CHAIN:
            raise _refused(
                CANDIDATES,
                f"of more than {LONGEST_CHAIN} messages came since the last commit; wait "
                "for tokens",
            )


def _refused(field: str, why: str) -> Refusal:
    return Refusal("INVALID_ARGUMENT", f"{field} {why}", field=field)
