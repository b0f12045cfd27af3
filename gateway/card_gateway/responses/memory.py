"""Items of earlier answers, kept in this process alone.

Some clients send the id of an item in place of the item, unless they said `store: false`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any

from pydantic import TypeAdapter

from card_gateway.errors import as_json, refused
from card_gateway.responses.items import Item, ItemReference

_MOST_BYTES = 16 << 20
MOST_REFERRED_BYTES = 1 << 20
"""Of the items that one request refers to, as JSON: as much as a body may hold."""

_ITEM: TypeAdapter[Any] = TypeAdapter(Item)


class ItemMemory:
    """Forgets the oldest items once all together take more than 16 MiB, as JSON.

    Log-probabilities are left out, because nothing reads them later.
    """

    def __init__(self) -> None:
        self._items: OrderedDict[str, str] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()  # answers are made in several threads

    def keep(self, items: Sequence[dict[str, Any]]) -> None:
        with self._lock:
            for item in items:
                written = as_json(_without_log_probs(item))
                self._items[item["id"]] = written
                self._bytes += len(written)
            while self._bytes > _MOST_BYTES:
                _, forgotten = self._items.popitem(last=False)
                self._bytes -= len(forgotten)

    def resolved(self, items: Sequence[Item]) -> list[Item]:
        """The items, and in place of references what they refer to. Raises `ApiError`."""
        left = MOST_REFERRED_BYTES
        found: list[Item] = []
        for place, item in enumerate(items):
            if isinstance(item, ItemReference):
                written = self._found(place, item)
                left -= len(written)
                if left < 0:
                    raise refused(
                        "input",
                        "input refers to items that hold more than "
                        f"{MOST_REFERRED_BYTES} bytes; refer to fewer of them",
                    )
                item = _ITEM.validate_json(written)
            found.append(item)
        return found

    def _found(self, place: int, reference: ItemReference) -> str:
        written = self._items.get(reference.id)
        if written is None:
            field = f"input.{place}.id"
            raise refused(
                field,
                f"{field} names {as_json(reference.id)}, of which this gateway knows nothing; send "
                "the item itself (clients do with store: false)",
            )
        return written


def _without_log_probs(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] != "message":
        return item
    return item | {"content": [part | {"logprobs": []} for part in item["content"]]}
