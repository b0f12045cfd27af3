"""Enforces a guide on a text of the target, and masks the draft's candidates with it.

A loop must not wait for a guide, so threads compute masks a step ahead of it. llguidance lets other
threads run while it computes a mask. A step of an ordinary guide takes some microseconds; a step of
an ambiguous grammar takes up to seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from card.constraints.guide import GuideError

if TYPE_CHECKING:  # as in `card.constraints.compiler`
    from card.constraints.compiled import CompiledGuide, GuidedText

Result = TypeVar("Result")
Masks = list[NDArray[np.bool_]]

SLOW_S = 0.005
"""A guide is slow from this processor time of a step on; a loop waits this long for a step of
another guide. An ordinary step takes 0.1 ms. The time decides in which thread a guide computes and
whether its text gets candidates, and never changes the text."""

_QUICK_THREADS = 8
"""Steps that may be slow at the same time before an ordinary guide waits for one of them."""
_REST_OF_SLOW = 4.0


class RestingThread:
    """One thread that works in order. After each piece it sleeps `rest` times as long as the piece
    took, which leaves a share of the processor to others."""

    def __init__(self, name: str, rest: float) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._rest = rest
        self._rests_until = 0.0

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        return self._thread.submit(self._rested, work)

    def _rested(self, work: Callable[[], Result]) -> Result:
        started = time.monotonic()
        if started < self._rests_until:
            time.sleep(self._rests_until - started)
            started = time.monotonic()
        try:
            return work()
        finally:
            ended = time.monotonic()
            self._rests_until = ended + self._rest * (ended - started)


class GuideThreads:
    """Several threads for ordinary guides; one resting thread for all slow guides."""

    def __init__(self) -> None:
        self._quick = ThreadPoolExecutor(_QUICK_THREADS, thread_name_prefix="guides")
        self._slow = RestingThread("slow-guides", _REST_OF_SLOW)

    def submit(self, work: Callable[[], Result], *, slow: bool) -> Future[Result]:
        return self._slow.submit(work) if slow else self._quick.submit(work)


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


class DraftConstraint:
    """Masks the candidates of one text with its guide while that is fast. It gives a slow guide up,
    because the target enforces the guide anyway. One thread uses it; other threads compute."""

    def __init__(
        self, compiled: Future[CompiledGuide], threads: GuideThreads, patience_s: float
    ) -> None:
        self._compiled = compiled
        self._threads = threads
        self._patience_s = patience_s
        self._text: GuidedText | None = None
        self._unread: list[int] = []
        self._given_up = False

    def advance(self, tokens: list[int]) -> None:
        """The text grew."""
        if not self._given_up:
            self._unread += tokens

    def masks_behind(self, paths: Sequence[list[int]]) -> Masks | None:
        """Ids that may follow each of these paths, [vocabulary] bool; none behind a path that the
        guide does not allow. None: the guide is not compiled yet, or is given up."""
        if self._given_up or not self._compiled.done():
            return None
        tokens, self._unread = self._unread, []
        try:
            self._given_up = self._compiled.result().is_slow
            if self._given_up:
                return None
            work = self._threads.submit(lambda: self._masks(tokens, paths), slow=False)
            return work.result(self._patience_s)
        except (GuideError, NotYetError):
            self._given_up = True
            return None

    def _masks(self, tokens: list[int], paths: Sequence[list[int]]) -> Masks:
        if self._text is None:
            self._text = self._compiled.result().begin()
        text, masks = self._text, Masks()
        for token in tokens:
            self._check_wanted()
            text.advance(token)
        for path in paths:
            self._check_wanted()
            masks.append(text.allowed_behind(path))
        return masks

    def _check_wanted(self) -> None:
        """Raises `GuideError` where the answer comes too late."""
        if self._given_up:
            raise GuideError("the draft has given this guide up")
