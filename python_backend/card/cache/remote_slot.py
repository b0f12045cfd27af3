"""The view of a slot that devices have which draft for it."""

from __future__ import annotations

from collections.abc import Sequence

from card.cache.chain import write_chain
from card.cache.slot import SlotView


class RemoteSlot(SlotView):
    """The view of whoever takes what devices draft: publishes chains."""

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt, valid while the slot is open with the session id read before."""
        return int(self._record["prompt_length"])

    def publish(self, session_id: int, root_length: int, tokens: Sequence[int]) -> None:
        """Put a chain in the place of the one before; see `write_chain`."""
        write_chain(self._record, session_id, root_length, tokens)
