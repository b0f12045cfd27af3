"""The next layer is read while the present one is used."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from card.engines.checkpoints import ahead


def test_next_item_is_made_while_the_present_one_is_used() -> None:
    made = [threading.Event() for _ in range(3)]

    def items() -> Iterator[int]:
        for number, event in enumerate(made):
            event.set()
            yield number

    found = []
    for number in ahead(items()):
        found.append(number)
        assert all(event.wait(10) for event in made[: number + 2])
    assert found == [0, 1, 2]


def test_error_is_raised_behind_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("damaged")

    found = ahead(items())
    assert next(found) == 1
    with pytest.raises(ValueError, match="damaged"):
        next(found)
