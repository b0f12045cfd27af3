"""Which sessions are alike, so that what the draft gained one says something about the next."""

from __future__ import annotations

from collections.abc import Sequence

from card.sampling import SamplingParameters
from card.speculation.control.costs import size_of
from card.speculation.control.interface import ControlledSession
from card.speculation.control.trial import PAUSE


class Kinds:
    """Many that share passes are told apart by their number, which falls slowly, so that sessions
    which come and go leave it as it is; one alone by how its tokens are chosen."""

    def __init__(self) -> None:
        self._size = 0.0

    def of(self, sessions: Sequence[ControlledSession]) -> tuple[int, ...]:
        """The kind of those that share the next pass."""
        self._size = max(len(sessions), self._size - (self._size - len(sessions)) / PAUSE)
        if (count := round(self._size)) > 1:
            return (size_of(count),)
        return (0, *_sampling_of(sessions[0].parameters))


def _sampling_of(parameters: SamplingParameters) -> tuple[int, int]:
    """How hot a text is sampled, in quarters up to 2, and whether penalties, of which the draft
    knows nothing, change its tokens."""
    heat = 0.0 if parameters.is_greedy else min(parameters.temperature, 2.0)
    return round(4 * heat), int(parameters.penalises)
