"""How many rows a target pass should hold: what rows cost against how often drafts are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from card.engines.row_costs import CostCurve

EXPECTED_AGREEMENT = 0.8
"""Chance that a drafted token is accepted, believed of a session before anything is known of it."""

UNMEASURED_ROWS = 8

_BELIEF = 6.0
"""Judged candidates that the first belief counts for."""

_MEMORY = 96.0
"""Judged candidates that are remembered; older ones fade."""

_SOUGHT = 4
"""Candidates that sessions which share a pass are asked for, for each row that it may have: where
one text is easy and another is not, the easy one takes the rows of both."""

_STEPS = 40
"""Agreement is told apart in so many steps, for each of which rows are chosen once."""

_WORTH_CHANGING = 1.15
"""Gain of guesses from the text over the draft's candidates below which the draft goes on: it must
read what it missed before it gives candidates again."""


def ideal_tokens(rows: int, agreement: float) -> float:
    """Expected tokens of one pass over a chain of `rows` - 1 candidates and the last committed
    token, each candidate being accepted with chance `agreement`: (1 - a^rows) / (1 - a)."""
    if agreement >= 1.0:
        return float(rows)
    return float((1.0 - agreement**rows) / (1.0 - agreement))


class Acceptance:
    """How often, of late, a candidate that was reached was what the target chose."""

    def __init__(self) -> None:
        self._right = EXPECTED_AGREEMENT * _BELIEF
        self._judged = _BELIEF

    @property
    def rate(self) -> float:
        return self._right / self._judged

    def observe(self, accepted: int, offered: int) -> None:
        """A pass accepted so many of the candidates offered; the one behind them was wrong."""
        judged = accepted + (accepted < offered)
        fade = min(1.0, _MEMORY / (self._judged + judged))
        self._right = (self._right + accepted) * fade
        self._judged = (self._judged + judged) * fade


class RowPlan:
    """The rows per session that give most tokens per second, and what they gain.

    costs_ms     milliseconds of a pass by its rows; costs between and beyond are interpolated
    alone_share  share of its time that a pass takes while the draft rests
    """

    def __init__(self, costs_ms: Mapping[int, float], alone_share: float = 1.0) -> None:
        self._curve = CostCurve(costs_ms)
        self._alone_share = alone_share
        self._chosen: dict[tuple[int, int], tuple[int, float]] = {}

    def rows(self, agreement: float = EXPECTED_AGREEMENT, sessions: int = 1) -> int:
        """Rows of each of `sessions` sessions that share a pass."""
        return self._choose(agreement, sessions)[0]

    def most_rows(self, sessions: int = 1) -> int:
        """Rows that each of `sessions` sessions that share a pass may ask the cache for: not all of
        them will be worth so many."""
        most = max(self._curve.choices, default=UNMEASURED_ROWS)
        return max(2, min(most, _SOUGHT * most // sessions))

    def worthwhile(
        self, chains: Sequence[Sequence[float]], most_rows: int | None = None
    ) -> list[int]:
        """How many candidates of each chain to verify for most tokens per second of the pass that
        their sessions share: the likeliest of all, as many as are worth their rows.

        chains     [sessions][candidates] chances of being accepted, falling along a chain
        most_rows  that the sessions may take in all, if each has one; None: any number
        """
        likeliest = sorted(
            (
                (-chance, place, session)
                for session, chain in enumerate(chains)
                for place, chance in enumerate(chain)
            )
        )
        worth = [-entry[0] for entry in likeliest]
        best = self._curve.best_rows(worth, given=len(chains))
        if most_rows is not None:
            best = min(best, max(0, most_rows - len(chains)))
        verified = [0] * len(chains)
        for _, _, session in likeliest[:best]:
            verified[session] += 1
        return verified

    def gain(self, agreement: float, sessions: int = 1) -> float:
        """Tokens per second with that many rows against one row each and no draft."""
        return self._choose(agreement, sessions)[1]

    def gain_of_text(self, trust: float, sessions: int = 1) -> float:
        """`gain` of guesses from the text that come true with chance `trust`, while the draft
        rests: a session that has the target for itself then has the draft's cores too."""
        gained = self.gain(trust, sessions)
        return gained / self._alone_share if sessions == 1 else gained

    def guesses_instead(self, trust: float, agreement: float, sessions: int = 1) -> int | None:
        """How many guesses from the text to verify instead of the draft's candidates, which are
        accepted with chance `agreement`; None: the draft had better go on."""
        drafted = self.gain(agreement, sessions)
        if self.gain_of_text(trust, sessions) < _WORTH_CHANGING * drafted:
            return None
        return self.rows(trust, sessions) - 1

    def cost(self, rows: int) -> float:
        """What a pass of one session with so many rows takes, in passes of decoding alone."""
        if not self._curve.choices:
            return 1.0
        return self._curve.pass_ms(rows) / (self._curve.pass_ms(1) * self._alone_share)

    def promise(self) -> float:
        """What a session alone gains before anything is known of the draft."""
        return self.gain(EXPECTED_AGREEMENT)

    def _choose(self, agreement: float, sessions: int) -> tuple[int, float]:
        step = round(agreement * _STEPS)
        if (step, sessions) not in self._chosen:
            self._chosen[step, sessions] = self._best(step / _STEPS, sessions)
        return self._chosen[step, sessions]

    def _best(self, agreement: float, sessions: int) -> tuple[int, float]:
        if not self._curve.choices:
            return UNMEASURED_ROWS, ideal_tokens(UNMEASURED_ROWS, agreement)
        alone = self._curve.pass_ms(sessions) * self._alone_share
        gains = {
            rows: ideal_tokens(rows, agreement) * alone / self._curve.pass_ms(rows * sessions)
            for rows in self._curve.choices
        }
        rows = max(gains, key=lambda rows: gains[rows])
        return rows, gains[rows]
