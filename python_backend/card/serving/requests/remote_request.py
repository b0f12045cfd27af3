"""The tensors that a device sends to `remote`, and their allowed values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from card.cache import LONGEST_CHAIN, digest_of
from card.serving.requests.refusal import Refusal, invalid, missing
from card.speculation.drafters.remote import DeviceDraft

DRAFT_KEY, POSITION, CANDIDATES = "draft_key", "position", "candidates"
DTYPES = {DRAFT_KEY: "BYTES", POSITION: "INT32", CANDIDATES: "INT32"}
"""Dtype of every tensor; each has one dimension, and all but the candidates have one element."""

TAKEN = "taken"
"""The only output: whether any candidate was still useful."""


def check_sizes(shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse missing, unknown and too large tensors, before reading any of them.

    Raises `Refusal`.
    """
    for name in DTYPES:
        if name not in shapes:
            raise missing(name, "draft_key, position and candidates")
    for name, shape in shapes.items():
        if name not in DTYPES:
            raise invalid("input", name, f"one of {', '.join(DTYPES)}")
        most = LONGEST_CHAIN if name == CANDIDATES else 1
        if not 1 <= (count := math.prod(shape)) <= most:
            allowed = f"1 to {most}" if most > 1 else "1"
            raise Refusal(
                "INVALID_ARGUMENT",
                f"{name} has {count} elements; it must have {allowed}",
                field=name,
            )


def read_draft(arrays: Mapping[str, NDArray[Any]]) -> tuple[bytes, DeviceDraft]:
    """The digest of the key, and the draft, from tensors of checked sizes."""
    key: bytes = arrays[DRAFT_KEY].reshape(-1)[0]
    draft = DeviceDraft(int(arrays[POSITION].reshape(-1)[0]), arrays[CANDIDATES].tolist())
    return digest_of(key.decode("utf-8", "replace")), draft
