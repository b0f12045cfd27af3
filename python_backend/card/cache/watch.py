"""Notices when `card` opened or closed slots, so that engines look at them only then."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import TypeVar

import numpy as np

from card.cache.draft_slot import DraftSlot
from card.cache.layout import SlotState
from card.cache.pool import Pool
from card.cache.request import SlotRequest
from card.cache.target_slot import TargetSlot

View = TypeVar("View", DraftSlot, TargetSlot)


class SlotWatch:
    """Remembers states and session ids of all slots between two looks."""

    def __init__(self, pool: Pool) -> None:
        self._states = pool.states
        # A slot begins with its state and its session id.
        self._looked_at = pool.slots.view(np.int64).reshape(pool.geometry.slots, -1)[:, :2]
        self._seen = b""

    def look(self) -> bool:
        """Look at all slots; whether any changed since the last look (at the first look: yes)."""
        before = self._seen
        self._seen = self._looked_at.tobytes()
        return before != self._seen

    def opened(
        self, slots: Sequence[View], known: Container[int]
    ) -> Iterator[tuple[View, int, SlotRequest]]:
        """Slot, session id and request of every open slot whose index is not `known` yet; one that
        cannot be read yet is looked at again next time."""
        for index in (self._states == SlotState.OPEN).nonzero()[0].tolist():
            if index in known:
                continue
            slot = slots[index]
            opened = slot.opened()
            if opened is None:
                self.forget()
                continue
            session_id, request = opened
            yield slot, session_id, request

    def forget(self) -> None:
        """Look again next time: something could not be read yet."""
        self._seen = b""
