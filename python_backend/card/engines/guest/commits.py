"""What became of the candidates of a pass, from the tokens that the engine committed."""

from __future__ import annotations

from collections.abc import Sequence


def num_agreed(tokens: Sequence[int], candidates: Sequence[int]) -> int:
    """How many of the first tokens are the first candidates."""
    agreed = 0
    for token, candidate in zip(tokens, candidates, strict=False):
        if token != candidate:
            break
        agreed += 1
    return agreed
