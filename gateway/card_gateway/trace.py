"""What speculation did to a text, for a client that follows it: Triton's events with the texts of
their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from card_gateway.tokens import TokenTexts

Event = dict[str, Any]


class TraceTexts:
    """Tells the text of each token once, beside the events of an answer that name it first."""

    def __init__(self, tokens: TokenTexts | None) -> None:
        """`tokens` is None where the gateway has no tokenizer: then nothing is told but ids."""
        self._tokens = tokens
        self._told: set[int] = set()

    def told(self, events: Sequence[Event]) -> dict[str, Any]:
        """`texts` are by id, each as the token is written by itself."""
        named = dict.fromkeys(token for event in events for token in _tokens_of(event))
        new = [token for token in named if token not in self._told]
        self._told.update(new)
        of = self._tokens
        texts = {} if of is None else {str(token): of.of(token) for token in new}
        return {"events": events, "texts": texts}


def _tokens_of(event: Event) -> Iterable[int]:
    yield from event.get("tokens", ())
    for pair in (*event.get("candidates", ()), *event.get("nodes", ())):
        yield pair[0]
