"""Compiles guides beside a loop that must not wait, and keeps the latest of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from card.constraints.guide import Guide

if TYPE_CHECKING:  # most services never meet a guide, and what compiles them takes memory
    from card.constraints.compiled import CompiledGuide, GuidedText, GuidedTokens

_KEPT = 32
"""Compiled guides: a few hundred kilobytes each, seldom tens of megabytes."""


class GuideCompiler:
    """Of one model, in one process; used from one thread.

    load_tokens  called for the first guide; raises `GuideError` if no text can be guided
    """

    def __init__(self, load_tokens: Callable[[], GuidedTokens]) -> None:
        self._tokens = cache(load_tokens)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="guides")
        self._compiled: OrderedDict[Guide, Future[CompiledGuide]] = OrderedDict()

    def constraint(self, guide: Guide) -> Constraint:
        """What holds a text to the guide, as soon as that is compiled."""
        compiled = self._compiled.get(guide)
        if compiled is None:
            compiled = self._thread.submit(self._compile, guide)
            self._compiled[guide] = compiled
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(guide)
        return Constraint(compiled)

    def _compile(self, guide: Guide) -> CompiledGuide:
        return self._tokens().compile(guide)


class Constraint:
    """Holds one text to its guide.

    Every method but `advance` waits until the guide is compiled, and raises `GuideError` if it
    cannot be, or if a text has come to a place where looking for what is allowed takes too much.
    """

    def __init__(self, compiled: Future[CompiledGuide]) -> None:
        self._compiled = compiled
        self._text: GuidedText | None = None
        self._unread: list[int] = []

    @property
    def is_ready(self) -> bool:
        return self._compiled.done()

    def advance(self, tokens: list[int]) -> None:
        """The text grew."""
        self._unread += tokens

    def allowed(self) -> NDArray[np.bool_]:
        """Which ids may come next, [vocabulary]: at least one."""
        return self._read().allowed()

    def allowed_behind(self, path: list[int]) -> NDArray[np.bool_]:
        """Which ids may come behind these, [vocabulary]; none if these may not come themselves."""
        return self._read().allowed_behind(path)

    def fitting(self, path: list[int]) -> int:
        """How many of these tokens, from the first, the text may go on with."""
        return self._read().fitting(path)

    def forced_behind(self, path: list[int]) -> list[int]:
        """What the text must go on with behind these, which it may have."""
        return self._read().forced_behind(path)

    def _read(self) -> GuidedText:
        if self._text is None:
            self._text = self._compiled.result().begin()
        for token in self._unread:
            self._text.advance(token)
        self._unread.clear()
        return self._text
