"""What earlier sessions tell a fresh one: whether the draft was worth it of late.

A draft that is right about one text is usually right about the next, and one that knows nothing of
the target never is. How hot a text is sampled changes that, and penalties do, which the draft
knows nothing of: such requests are told apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from card.decoding.gain import DOUBTED_GAIN, EXPECTED_GAIN, Tally
from card.decoding.rest import pays
from card.sampling import SamplingParameters

_STEPS_PER_UNIT = 4
_HOTTEST = 2.0
"""Temperatures are rounded to quarters; those above this one are all alike."""

_FEWEST_PASSES = 4.0
"""What sessions must have spent, in passes of decoding alone, before they teach anything: one that
spent less, as those that are tried once in a text, teaches together with the next ones."""

_REMEMBERED = 8
"""Sessions whose mean is believed, while each sees less than that. Whoever sees more is believed at
once: a session that rests cannot say how well it would have done, so the good ones among many poor
ones must not be put to rest by those."""

_TRIED_AGAIN = 8
"""Sessions begun since the last that taught something, from which on they try their draft,
believing little of it: else a hopeless one would never be heard of again."""


@dataclass(slots=True)
class _Belief:
    """Of requests of one kind.

    sessions  whose mean it is; the first is none that was seen
    begun     sessions since the last that taught something
    too_few   what was seen since by sessions that saw next to nothing
    """

    gain: float = EXPECTED_GAIN
    sessions: int = 1
    begun: int = 0
    too_few: Tally = field(default_factory=Tally)


class Experience:
    """What gain to expect of a session of CARD, by how its tokens are chosen."""

    def __init__(self) -> None:
        self._beliefs: dict[tuple[int, bool], _Belief] = {}

    def expect(self, parameters: SamplingParameters) -> float:
        """Gain of a session that begins now."""
        belief = self._of(parameters)
        belief.begun += 1
        tries = belief.begun >= _TRIED_AGAIN and not pays(belief.gain)
        return DOUBTED_GAIN if tries else belief.gain

    def vouches(self, parameters: SamplingParameters) -> bool:
        """Whether drafts were well worth it in sessions like this one, so that one that is not may
        just be unlucky."""
        belief = self._of(parameters)
        return belief.sessions > 1 and belief.gain > DOUBTED_GAIN

    def learn(self, parameters: SamplingParameters, tally: Tally) -> None:
        """What a session saw that has ended."""
        belief = self._of(parameters)
        seen = belief.too_few
        seen.add(tally.tokens, tally.cost)
        if seen.cost < _FEWEST_PASSES:
            return
        belief.sessions = min(belief.sessions + 1, _REMEMBERED)
        mean = belief.gain + (seen.gain - belief.gain) / belief.sessions
        belief.gain, belief.begun, belief.too_few = max(seen.gain, mean), 0, Tally()

    def _of(self, parameters: SamplingParameters) -> _Belief:
        heat = 0.0 if parameters.is_greedy else min(parameters.temperature, _HOTTEST)
        kind = round(heat * _STEPS_PER_UNIT), parameters.penalises
        return self._beliefs.setdefault(kind, _Belief())
