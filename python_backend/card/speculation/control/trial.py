"""Whether the draft works: an account of the time that it gained or lost.

Time is counted in passes of decoding alone. While the draft works, every pass is charged what it
cost and credited the tokens that the draft gave. When the loss of late is too great the draft
stops. Passes without it pay the debt back, slowly, and then the draft is tried again. So trials
never take more than a small share of the time, whatever the draft does.
"""

from __future__ import annotations

from dataclasses import dataclass

STOP = 5.0
"""Passes lost of late at which the draft stops. A good draft seldom loses so much by bad luck."""
TRIAL_SHARE = 0.02
"""Share of the time without the draft that pays for trials of it."""
PAUSE = 32
"""Passes between two trials, at least; passes in which a number of sessions is forgotten."""


@dataclass(slots=True)
class Trial:
    """Whether the draft works, for sessions of one kind.

    debt      passes that were lost by the draft and not paid back; negative: gained
    evidence  passes lost of late, at least 0
    passes    since the draft stopped
    found     it has given a candidate since it began to work
    pause     passes without it until it is tried
    has_failed  the draft had lost more than it gained when it stopped last
    """

    drafts: bool
    debt: float
    pause: int = PAUSE
    evidence: float = 0.0
    passes: int = 0
    found: bool = False
    has_failed: bool = False

    def charge(self, loss: float, *, found: bool) -> None:
        """A pass beside the draft lost so much against a pass without it."""
        if found and not self.found:
            # What it read before it could give anything is no fault of its candidates. A draft
            # that failed is soon found out the second time.
            self.found, self.evidence = True, STOP / 2 if self.has_failed else 0.0
        self.debt = max(self.debt + loss, -2.0 * STOP)
        self.evidence = max(0.0, self.evidence + loss)
        if self.evidence > (STOP if self.found else 1.5 * STOP):
            self._turn(drafts=False)
            self.has_failed = self.debt > 0.0

    def pay(self) -> None:
        """A pass without the draft."""
        self.passes += 1
        self.debt = max(self.debt - TRIAL_SHARE, -2.0 * STOP)
        if self.passes >= self.pause and self.debt <= 0.0:
            self._turn(drafts=True)

    def begin_text(self) -> None:
        """Another text may be easier for a draft that was worth it so far."""
        if not self.drafts and self.debt <= 0.0:
            self._turn(drafts=True)

    def await_draft(self) -> None:
        """The draft is gone. When it is back it has to read what it missed."""
        self.evidence, self.found = 0.0, False

    def _turn(self, *, drafts: bool) -> None:
        self.drafts, self.pause, self.evidence, self.passes = drafts, PAUSE, 0.0, 0
        self.found = False
