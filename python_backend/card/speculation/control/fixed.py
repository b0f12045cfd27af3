"""The baseline: every pass has the same shape, and the draft always works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from card.cache import Candidates
from card.speculation.acceptance import Outcome
from card.speculation.control.interface import ControlConfig, ControlledSession, Share, StepPlan

UNMEASURED_ROWS = 8
"""Rows of a pass where nothing says what rows cost."""


class Fixed:
    """As many rows as the settings say, but for prompts that are read beside."""

    chooses_rows: ClassVar[bool] = False

    def __init__(self, config: ControlConfig) -> None:
        self._config = config

    def plan(
        self,
        sessions: Sequence[ControlledSession],
        *,
        draft_lives: bool,
        draft_pass_ms: float = 0.0,
        reading: Sequence[ControlledSession] = (),
        most_rows: int | None = None,
    ) -> StepPlan:
        rows = self._config.num_rows or UNMEASURED_ROWS
        if most_rows is not None:
            rows = min(rows, max(1, most_rows // max(1, len(sessions))))
        return StepPlan(
            [
                Share(
                    (draft_lives or session.is_remote) and session.drafts,
                    rows,
                    self._config.ngram_tokens,
                    session.is_remote,
                )
                for session in sessions
            ]
        )

    def trim(
        self,
        plan: StepPlan,
        sessions: Sequence[ControlledSession],
        found: Sequence[Candidates],
        drafted: Sequence[int],
        *,
        beside: bool,
    ) -> list[int]:
        return [len(candidates) for candidates in found]

    def observe(
        self,
        plan: StepPlan,
        sessions: Sequence[ControlledSession],
        outcomes: Sequence[Outcome],
        seconds: float | None,
        waited_s: float = 0.0,
        *,
        beside: bool,
    ) -> None: ...

    def forget(self, session: ControlledSession) -> None: ...
