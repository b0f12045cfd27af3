"""What a unary answer carries: the deltas of a whole text as one, and its tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from card.serving.requests.delta import Delta
from card.serving.requests.refusal import Refusal

OUTPUT_IDS, SEQUENCE_LENGTH = "output_ids", "sequence_length"
"""Tensors beside those of the ensemble: INT32 [1, tokens] and [1]."""


def token_outputs(tokens: Sequence[int]) -> dict[str, NDArray[Any]]:
    """These tensors of one answer."""
    return {
        OUTPUT_IDS: np.array([[tokens]], np.int32),
        SEQUENCE_LENGTH: np.array([[len(tokens)]], np.int32),
    }


def gathered(deltas: Iterable[Delta]) -> Delta:
    """The whole text as one delta: counts are those of the last. Raises `Refusal` without any."""
    pieces = list(deltas)
    if not pieces:
        raise Refusal("INTERNAL", "card ended without an answer; see the server's log")
    last = pieces[-1]
    log_probs = (
        None
        if last.log_probs is None
        else tuple(value for piece in pieces for value in piece.log_probs or ())
    )
    return replace(
        last,
        text="".join(piece.text for piece in pieces),
        log_probs=log_probs,
        tokens=tuple(token for piece in pieces for token in piece.tokens),
        details=_joined([piece.details for piece in pieces if piece.details]),
        numbers=last.numbers._replace(accepted_bytes=_accepted_bytes(pieces)),
    )


def _accepted_bytes(pieces: Sequence[Delta]) -> int:
    """Leading bytes of the whole text that came from the cache."""
    total = 0
    for piece in pieces:
        total += piece.numbers.accepted_bytes
        if piece.numbers.accepted_bytes < len(piece.text.encode()):
            break
    return total


def _joined(details: Sequence[str]) -> str:
    """The JSON of all pieces as that of one."""
    whole: dict[str, Any] = {}
    for text in details:
        for name, value in json.loads(text).items():
            whole[name] = whole[name] + value if name == "tokens" and name in whole else value
    return json.dumps(whole, separators=(",", ":")) if whole else ""
