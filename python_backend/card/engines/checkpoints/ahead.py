"""Makes the next item while the present one is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The items, each made in a thread while the one before is used. An error is raised where its
    item would be."""
    iterator = iter(items)
    with ThreadPoolExecutor(1) as executor:
        coming = executor.submit(next, iterator, None)
        while (item := coming.result()) is not None:
            coming = executor.submit(next, iterator, None)
            yield item
