"""How long the target waits for the draft where the pacing wants it to."""

from __future__ import annotations

_SHORTEST_SHARE = 1 / 64


class DraftWait:
    """With a draft that lives but gives nothing: after each wait in vain the next one lasts half
    as long, so that a text costs one whole wait and not one per token; a draft that gives
    something again gets its time back."""

    def __init__(self) -> None:
        self._share = 1.0

    def is_over(self, waited_s: float, longest_s: float) -> bool:
        """Whether so long a wait is enough, where the first may last `longest_s`."""
        return waited_s > self._share * longest_s

    def restore(self) -> None:
        """What was waited for is there."""
        self._share = 1.0

    def shorten(self) -> None:
        """A wait was in vain."""
        self._share = max(_SHORTEST_SHARE, self._share / 2)
