"""How far a device is ahead of the text that the server committed, and what it sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from card_client.edge.model import DraftModel
from card_client.wire import Draft

LONGEST_CHAIN = 64
"""Tokens of one draft that the server takes."""
DEFAULT_AHEAD = 16


class Device:
    """Drafts behind one text, a token at a time, and never more than `ahead` tokens.

    The text is what the server committed. Where it is not what was drafted, the device drafts anew
    from there.
    """

    def __init__(
        self,
        model: DraftModel,
        prompt: Sequence[int],
        *,
        max_tokens: int | None = None,
        ahead: int = DEFAULT_AHEAD,
        whole: bool = False,
    ) -> None:
        """`max_tokens` bounds the text, if that is known. `whole`: a chain is sent only when it is
        as long as it may be, for a server that waits for it."""
        self._model = model
        self._text = list(prompt)
        self._prompt_length = len(prompt)
        self._max_tokens = max_tokens
        self._most_ahead = min(ahead, LONGEST_CHAIN)
        self._whole = whole
        self._ahead: list[int] = []
        self._changed = asyncio.Event()
        self._grown = asyncio.Event()
        self._closed = False

    @property
    def position(self) -> int:
        """Tokens of the text behind the prompt."""
        return len(self._text) - self._prompt_length

    def commit(self, tokens: Sequence[int]) -> None:
        """The server committed these, if any."""
        if not tokens:
            return
        self._text += tokens
        right = self._ahead[: len(tokens)] == list(tokens)
        self._ahead = self._ahead[len(tokens) :] if right else []
        self._changed.set()
        if not self._may_draft():  # what is left is all that will come
            self._grown.set()

    def close(self) -> None:
        """The text has ended: nothing more is drafted or sent."""
        self._closed = True
        self._changed.set()
        self._grown.set()

    async def draft(self) -> None:
        """Draft until the text ends. Raises what the model raises."""
        while not self._closed:
            if self._may_draft():
                await self._draft_one()
            else:
                self._changed.clear()
                await self._changed.wait()

    async def drafts(self) -> AsyncGenerator[Draft, None]:
        """Yields the whole chain when it has grown, until the text ends. Nothing comes before the
        first commit, for the server knows of no session until then.

        A slow consumer gets fewer, longer drafts, because nothing is queued.
        """
        while not self._closed:
            await self._grown.wait()
            self._grown.clear()
            if self._may_send():
                yield Draft(self.position, tuple(self._ahead))

    def _may_send(self) -> bool:
        if self._closed or not self._ahead or not self.position:
            return False
        return not (self._whole and self._may_draft())

    def _may_draft(self) -> bool:
        if self._ahead and self._ahead[-1] in self._model.end_ids:
            return False
        most = self._most_ahead
        if self._max_tokens is not None:  # the last token is always the server's own
            most = min(most, self._max_tokens - self.position - 1)
        return len(self._ahead) < most

    async def _draft_one(self) -> None:
        """One token more, unless the text has gone another way meanwhile."""
        behind = [*self._text, *self._ahead]
        token = await asyncio.to_thread(self._model.next_token, behind)
        if behind == [*self._text, *self._ahead]:
            self._ahead.append(token)
            self._grown.set()
