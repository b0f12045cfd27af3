"""Compiles guides beside a loop that must not wait, and keeps the latest ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, partial
from typing import TYPE_CHECKING

from card.constraints.constraint import (
    SLOW_S,
    Constraint,
    DraftConstraint,
    GuideThreads,
    RestingThread,
)
from card.constraints.guide import Guide, GuideError

if TYPE_CHECKING:  # most services never use guides, and llguidance takes memory
    from card.constraints.compiled import CompiledGuide, GuidedTokens

_KEPT = 32
_KEPT_CHARACTERS = 1 << 16
"""Compiled guides and their text: a guide takes a few hundred kilobytes, one of 60 kB of text may
take 30 MB."""
_MOST_DRAFTED = 1 << 15
"""Characters of a guide. The draft goes without a longer one, which only the target holds."""
_REST_OF_COMPILER = 1.0


class GuideCompiler:
    """The guides of one model in one process. One thread uses it.

    load_tokens  called for the first guide; raises `GuideError` if no text can be guided
    patience_s   longest wait of the loop for one step of one guide
    """

    def __init__(self, load_tokens: Callable[[], GuidedTokens], patience_s: float = SLOW_S) -> None:
        self._tokens = cache(load_tokens)
        self._patience_s = patience_s
        self._thread = RestingThread("guide-compiler", _REST_OF_COMPILER)
        self._threads = GuideThreads()
        self._compiled: OrderedDict[Guide, Future[CompiledGuide]] = OrderedDict()

    def constraint(self, guide: Guide) -> Constraint:
        """The constraint of a text; it works as soon as the guide is compiled."""
        return Constraint(self._compiled_guide(guide), self._threads, self._patience_s)

    def draft_constraint(self, guide: Guide) -> DraftConstraint:
        """What keeps candidates of a text to the guide, as soon as that is compiled."""
        compiled: Future[CompiledGuide]
        if len(guide.text) > _MOST_DRAFTED:
            compiled = Future()
            compiled.set_exception(GuideError("it is too long for the draft"))
        else:
            compiled = self._compiled_guide(guide)
        return DraftConstraint(compiled, self._threads, self._patience_s)

    def _compiled_guide(self, guide: Guide) -> Future[CompiledGuide]:
        compiled = self._compiled.get(guide)
        if compiled is None:
            compiled = self._thread.submit(partial(self._compile, guide))
            self._compiled[guide] = compiled
            self._forget()
        self._compiled.move_to_end(guide)
        return compiled

    def _forget(self) -> None:
        """Drop the guides that were asked for longest ago, but never the last one."""
        characters = sum(len(guide.text) for guide in self._compiled)
        while len(self._compiled) > 1 and (
            len(self._compiled) > _KEPT or characters > _KEPT_CHARACTERS
        ):
            guide, _ = self._compiled.popitem(last=False)
            characters -= len(guide.text)

    def _compile(self, guide: Guide) -> CompiledGuide:
        """Compile a guide and time its first step. Raises `GuideError`."""
        compiled = self._tokens().compile(guide)
        text = compiled.begin()
        text.allowed()
        compiled.is_slow = text.step_s > SLOW_S
        return compiled
