"""What one session thinks of its draft, and so whether that works for it or rests."""

from __future__ import annotations

from dataclasses import dataclass, field

from card.decoding.experience import Experience
from card.decoding.gain import DOUBTED_GAIN, EXPECTED_GAIN, Gain
from card.decoding.rest import DraftRest, pays
from card.decoding.rows import Acceptance, RowPlan
from card.sampling import SamplingParameters


@dataclass(slots=True)
class Judgement:
    """Of one session. Lengths are those of prompt and output.

    leans_on_text  the draft rests while the text repeats itself
    vouched        sessions like this one were seen to gain by their draft
    """

    acceptance: Acceptance = field(default_factory=Acceptance)
    gain: Gain = field(default_factory=Gain)
    rest: DraftRest = field(default_factory=DraftRest)
    leans_on_text: bool = False
    vouched: bool = False

    def begin(
        self, length: int, experience: Experience, parameters: SamplingParameters, promise: float
    ) -> None:
        """Let the draft not even begin if those of the sessions before had nothing to give.

        promise  gain to expect of a good draft on this machine
        """
        expected = experience.expect(parameters)
        self.vouched = experience.vouches(parameters)
        if not pays(min(expected, promise)):
            self.rest.foresee(length, expected)
            self._stop_judging()
        elif expected <= DOUBTED_GAIN:
            self.gain.believe(DOUBTED_GAIN)
        elif self.vouched:
            self.gain.believe(EXPECTED_GAIN, firmly=True)

    def lets_work(self, length: int) -> bool:
        """Whether the draft works for a text of this length."""
        return not (self.leans_on_text or self.rest.resting(length))

    def rests_until(self, end: int) -> int:
        """Length below which the draft rests, of a text that is at most `end` long."""
        return end if self.leans_on_text else self.rest.until

    def weigh(self, length: int) -> None:
        """Let a draft that works rest from here on if it does not pay."""
        loss = 0.0 if self.vouched else self.gain.loss
        if self.lets_work(length) and self.rest.consider(length, self.gain.rate, loss):
            self._stop_judging()

    def observe(
        self,
        plan: RowPlan,
        *,
        drafted: int,
        verified: int,
        accepted: int,
        corrects: bool,
        sharing: int,
    ) -> None:
        """What became of the candidates that a query found; guesses from the text say nothing of
        the draft.

        drafted   candidates that the cache gave
        verified  candidates that were in the pass, which `sharing` sessions had
        accepted  of these
        corrects  one of them was wrong
        """
        offered = min(drafted, verified)
        right = min(accepted, offered)
        self.acceptance.observe(right, right + (right < offered and corrects))
        self.gain.observe(
            drafted > 0, right, plan.cost(1 + offered), offered=offered, shared=sharing > 1
        )

    def lean_on_text(self, *, foretold: bool, corrects: bool) -> None:
        """Let the draft rest while guesses fill the rows that they are worth, until the first of
        them is wrong: a text that repeats itself needs no draft."""
        leant = self.leans_on_text
        self.leans_on_text = foretold and not (leant and corrects)
        if leant and not self.leans_on_text:
            self.gain.await_again()

    def pardon(self) -> None:
        """What a draft gave that was stopped or is dead says nothing of it."""
        self.gain.pardon()

    def _stop_judging(self) -> None:
        self.gain.doubt()
        # Else a subtree might never again be worth a row, and no row is ever judged.
        self.acceptance = Acceptance()
