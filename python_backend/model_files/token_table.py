"""Which token stands behind which id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TokenTable:
    """The tokens of a vocabulary.

    ids    of the tokens, as the vocabulary spells them
    added  tokens that stand beside the words and their parts: special ones, reserved ones, padding
    """

    ids: Mapping[str, int]
    added: frozenset[str]
