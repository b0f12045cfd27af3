"""Enforces a guide on a text of the target, and computes masks a step ahead of the loop."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from card.constraints.guide import GuideError
from card.constraints.threads import SLOW_S, GuideThreads

if TYPE_CHECKING:  # as in `card.constraints.compiler`
    from card.constraints.compiled import CompiledGuide, GuidedText

_QUICK_AGAIN = 16
"""Quick steps after which a text is no longer slow."""


class _Step(NamedTuple):
    """The mask of one place of a text.

    allowed  ids that may come next, [vocabulary] bool
    forced   tokens of the forced text there, by the tokenizer
    """

    allowed: NDArray[np.bool_]
    forced: list[int]


class Constraint:
    """Enforces the guide of one text. One thread uses it; other threads compute masks.

    Every committed place of the text takes one mask, in order, and no other place takes any. So the
    work of a text does not depend on candidates.
    """

    def __init__(
        self, compiled: Future[CompiledGuide], threads: GuideThreads, patience_s: float
    ) -> None:
        self._compiled = compiled
        self._threads = threads
        self._patience_s = patience_s
        self._text: GuidedText | None = None
        self._step: Future[_Step] | None = None
        self._unread: list[int] = []
        self._has_waited = False
        self._slow_steps = 0

    @property
    def is_ready(self) -> bool:
        """Whether the next mask is computed, or failed. If the mask is likely to be ready soon,
        this waits for it, once a step."""
        if not self._compiled.done():
            return False
        step = self._current_step()
        if not (step.done() or self.is_slow or self._has_waited):
            self._has_waited = True
            with suppress(NotYetError):
                step.exception(self._patience_s)
        return step.done() and not self._unread

    @property
    def is_slow(self) -> bool:
        """Whether steps of this text take long, so that candidates are useless."""
        return self._slow_steps > 0

    def advance(self, tokens: list[int]) -> None:
        """Append tokens to the text and start to compute the next mask."""
        self._unread += tokens
        if self._step is not None:
            self._current_step()

    def allowed(self) -> NDArray[np.bool_] | None:
        """Ids that may come next, [vocabulary] bool, at least one. None: not computed yet.

        Raises `GuideError` if the guide cannot be compiled, allows no id here, or exceeds a limit.
        """
        return self._current_step().result().allowed if self.is_ready else None

    def forced(self) -> list[int]:
        """Tokens of the forced text, by the tokenizer; empty while they are not computed. The model
        may choose other tokens of the same text."""
        if not self.is_ready:
            return []
        with suppress(GuideError):  # verification will raise it again
            return self._current_step().result().forced
        return []

    def close(self) -> None:
        """Cancel pending computations, because the text has ended."""
        if self._step is not None:
            self._step.cancel()

    def _current_step(self) -> Future[_Step]:
        """The step behind the whole text, or the pending step that must end before it."""
        if self._step is None or (self._unread and self._step.done()):
            if self._step is None and self._compiled.exception() is None:
                self._slow_steps = _QUICK_AGAIN if self._compiled.result().is_slow else 0
            tokens, self._unread, self._has_waited = self._unread, [], False
            self._step = self._threads.submit(lambda: self._take_step(tokens), slow=self.is_slow)
        return self._step

    def _take_step(self, tokens: list[int]) -> _Step:
        if self._text is None:
            self._text = self._compiled.result().begin()
        text = self._text
        for token in tokens:
            if not text.is_known:
                text.allowed()
            text.advance(token)
        step = _Step(text.allowed(), text.forced_behind([]))
        if text.step_s > SLOW_S:
            self._slow_steps = _QUICK_AGAIN
            self._compiled.result().is_slow = True
        elif self._slow_steps:
            self._slow_steps -= 1
        return step
