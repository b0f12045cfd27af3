"""A device whose drafts were recorded before."""

from __future__ import annotations

import random
from collections.abc import Sequence


class Recorded:
    """Drafts a text that it knows, but for some of its tokens; behind another text it is wrong."""

    end_ids: frozenset[int] = frozenset()

    def __init__(self, right: Sequence[int], share_wrong: float) -> None:
        chance = random.Random(len(right))
        self._right = list(right)
        self._drafted = [1 if chance.random() < share_wrong else token for token in right]

    def tokens(self, text: str) -> list[int]:
        return [0]

    def next_token(self, tokens: Sequence[int]) -> int:
        text = list(tokens[1:])
        return self._drafted[len(text)] if text == self._right[: len(text)] else 1
