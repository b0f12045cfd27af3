"""Masks the draft's candidates with a guide, below the nodes of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from card.constraints.guide import GuideError
from card.constraints.threads import GuideThreads

if TYPE_CHECKING:  # as in `card.constraints.compiler`
    from card.constraints.compiled import CompiledGuide, GuidedText

Masks = list[NDArray[np.bool_]]


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
