"""Compiles guides beside a loop that must not wait, and keeps the latest of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, partial
from typing import TYPE_CHECKING

from card.constraints.constraint import Constraint
from card.constraints.draft_constraint import DraftConstraint
from card.constraints.guide import Guide
from card.constraints.threads import SLOW_S, GuideThreads, RestingThread

if TYPE_CHECKING:  # most services never meet a guide, and what compiles them takes memory
    from card.constraints.compiled import CompiledGuide, GuidedTokens

_KEPT = 32
"""Compiled guides: a few hundred kilobytes each, seldom tens of megabytes."""
_REST_OF_COMPILER = 1.0


class GuideCompiler:
    """Of one model, in one process; used from one thread.

    load_tokens  called for the first guide; raises `GuideError` if no text can be guided
    patience_s   how long the loop may wait for one step of one guide
    """

    def __init__(self, load_tokens: Callable[[], GuidedTokens], patience_s: float = SLOW_S) -> None:
        self._tokens = cache(load_tokens)
        self._patience_s = patience_s
        self._thread = RestingThread("guide-compiler", _REST_OF_COMPILER)
        self._threads = GuideThreads()
        self._compiled: OrderedDict[Guide, Future[CompiledGuide]] = OrderedDict()

    def constraint(self, guide: Guide) -> Constraint:
        """What holds a text to the guide, as soon as that is compiled."""
        return Constraint(self._compiled_guide(guide), self._threads, self._patience_s)

    def draft_constraint(self, guide: Guide) -> DraftConstraint:
        """What keeps candidates of a text to the guide, as soon as that is compiled."""
        return DraftConstraint(self._compiled_guide(guide), self._threads, self._patience_s)

    def _compiled_guide(self, guide: Guide) -> Future[CompiledGuide]:
        compiled = self._compiled.get(guide)
        if compiled is None:
            compiled = self._thread.submit(partial(self._compile, guide))
            self._compiled[guide] = compiled
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(guide)
        return compiled

    def _compile(self, guide: Guide) -> CompiledGuide:
        """And see how long a first step takes. Raises `GuideError`."""
        compiled = self._tokens().compile(guide)
        text = compiled.begin()
        text.allowed()
        compiled.is_slow = text.step_s > SLOW_S
        return compiled
