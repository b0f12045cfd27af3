"""Writes the messages of devices as chains into the pool, and limits them."""

from __future__ import annotations

from dataclasses import dataclass

from card.cache import LONGEST_CHAIN, Pool, RemoteSlot
from card.speculation.drafters.remote import DeviceDraft


class RemoteDraftError(ValueError):
    """A refused message; the text says why and what to do."""


@dataclass(slots=True)
class _Session:
    """The state of one slot's session.

    messages  number of messages since the target's last commit
    """

    session_id: int
    committed: int = 0
    messages: int = 0


class RemoteDrafts:
    """Takes the messages of all devices. One thread calls it.

    A message costs one scan of the slots. A device sends at most one message per drafted token, and
    a chain holds `LONGEST_CHAIN` tokens, so more messages between two commits are refused.
    """

    def __init__(self, pool: Pool, vocabulary: int) -> None:
        self._pool = pool
        self._vocabulary = vocabulary
        self._slots = [pool.remote_slot(index) for index in range(pool.geometry.slots)]
        self._sessions: dict[int, _Session] = {}

    def take(self, digest: bytes, draft: DeviceDraft) -> bool:
        """Publish the draft of the device with a key of this digest; returns whether any candidate
        was left to publish.

        Raises `RemoteDraftError` for an invalid message.
        """
        self._check(draft)
        index = self._pool.drafted_by(digest)
        if index is None:
            raise RemoteDraftError(
                "draft_key names no session that is open here; send the request for a text first, "
                "with this draft_key"
            )
        slot = self._slots[index]
        session_id = slot.session_id
        length = slot.committed(session_id)
        if draft.position > length:
            raise RemoteDraftError(
                f"position is {draft.position}; it must be at most {length}, the tokens that are "
                "committed"
            )
        self._count(slot, session_id, length)
        left = draft.behind(slot.output(draft.position, length).tolist())
        # A slot may change between these reads; only this key's session has this session id.
        if not left or self._pool.drafted_by(digest) != index:
            return False
        slot.publish(session_id, slot.prompt_length + length, left)
        return True

    def _check(self, draft: DeviceDraft) -> None:
        if not 1 <= len(draft.tokens) <= LONGEST_CHAIN:
            raise RemoteDraftError(
                f"candidates has {len(draft.tokens)} elements; it must have 1 to {LONGEST_CHAIN}"
            )
        if min(draft.tokens) < 0 or max(draft.tokens) >= self._vocabulary:
            raise RemoteDraftError(
                f"candidates must be token ids, each 0 to {self._vocabulary - 1}"
            )
        if draft.position < 0:
            raise RemoteDraftError(f"position is {draft.position}; it must be 0 or more")

    def _count(self, slot: RemoteSlot, session_id: int, committed: int) -> None:
        known = self._sessions.get(slot.index)
        if known is None or (known.session_id, known.committed) != (session_id, committed):
            known = self._sessions[slot.index] = _Session(session_id, committed)
        known.messages += 1
        if known.messages > LONGEST_CHAIN:
            raise RemoteDraftError(
                f"more than {LONGEST_CHAIN} messages came since the last commit; wait for tokens"
            )
