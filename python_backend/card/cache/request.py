"""What a session decodes and how, and the fields of a slot that carry it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from card.cache.layout import CHOICE_BYTES, CHOICES
from card.cache.record import Record
from card.sampling import SamplingParameters

_NUMBERS = (
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "seed",
)
"""Sampling parameters that are one word of the slot, of the same name."""


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """What a session decodes and how.

    prompt      [tokens] int64
    max_tokens  output limit
    pacing, drafter, acceptance  registry keys of `card.speculation`
    num_draft_tokens   γ: draft passes before a verification in draft-then-verify, length of
                       PEARL's rounds
    log_probabilities  whether the target is to report them
    """

    prompt: NDArray[np.int64]
    max_tokens: int
    pacing: str
    parameters: SamplingParameters
    num_draft_tokens: int = 8
    log_probabilities: bool = False
    drafter: str = "tree"
    acceptance: str = "exact"


def choice_words(key: str) -> NDArray[np.int64]:
    """A registry key as it stands in a slot, [CHOICE_BYTES / 8] int64.

    Raises ValueError for a key that does not fit.
    """
    name = key.encode("ascii")
    if len(name) > CHOICE_BYTES:
        raise ValueError(f"{key} is longer than the {CHOICE_BYTES} bytes of a registry key")
    return np.frombuffer(name.ljust(CHOICE_BYTES, b"\0"), np.int64)


def _choice(words: NDArray[np.int64]) -> str:
    """Raises ValueError (UnicodeDecodeError) for what is no key."""
    return words.tobytes().rstrip(b"\0").decode("ascii")


def write_request(record: Record, request: SlotRequest) -> None:
    """Fill the fields; they count once the slot is open."""
    record["prompt_length"] = len(request.prompt)
    record["prompt"][: len(request.prompt)] = request.prompt
    record["max_tokens"] = request.max_tokens
    for name in CHOICES:
        record[name][:] = choice_words(getattr(request, name))
    record["num_draft_tokens"] = request.num_draft_tokens
    record["log_probabilities"] = request.log_probabilities
    parameters = request.parameters
    for name in _NUMBERS:
        record[name] = getattr(parameters, name)
    record["end_id_count"] = len(parameters.end_ids)
    record["end_ids"][: len(parameters.end_ids)] = parameters.end_ids
    lengths = [len(word) for word in parameters.bad_words]
    record["bad_word_count"] = len(lengths)
    record["bad_word_lengths"][: len(lengths)] = lengths
    record["bad_word_tokens"][: sum(lengths)] = [t for word in parameters.bad_words for t in word]


def read_request(record: Record) -> SlotRequest:
    """Raises ValueError if the fields make no request, as while another is being written."""
    lengths = record["bad_word_lengths"][: record["bad_word_count"]].tolist()
    tokens = record["bad_word_tokens"].tolist()
    words, at = [], 0
    for length in lengths:
        words.append(tuple(tokens[at : at + length]))
        at += length
    return SlotRequest(
        prompt=record["prompt"][: record["prompt_length"]].copy(),
        max_tokens=record["max_tokens"],
        **{name: _choice(record[name]) for name in CHOICES},
        num_draft_tokens=record["num_draft_tokens"],
        log_probabilities=bool(record["log_probabilities"]),
        parameters=SamplingParameters(
            bad_words=tuple(words),
            end_ids=tuple(record["end_ids"][: record["end_id_count"]].tolist()),
            **{name: record[name] for name in _NUMBERS},
        ),
    )
