"""The request of a session, and the fields of a slot that hold it."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from card.cache.layout import CHOICE_BYTES, CHOICES, DIGEST_WORDS, NO_SALT
from card.constraints import GUIDE_TYPES, Guide
from card.sampling import SamplingParameters

_FORMATS: Final = {"i": "q", "u": "Q", "f": "d"}
"""Format of a memoryview's words, by NumPy kind."""


class Record:
    """The fields of one slot, or of the header, by name: a single word as a number, other fields
    as live arrays or as a flat sequence of words.

    Memoryviews load or store all eight bytes of a word at once, like NumPy's records, in a third
    of the time.

    records  [records] of `layout.slot_dtype` or `layout.header_dtype`
    """

    __slots__ = ("_arrays", "_fields", "_words")

    def __init__(self, records: NDArray[np.void], index: int) -> None:
        self._words: dict[str, memoryview[Any]] = {}
        self._arrays: dict[str, NDArray[Any]] = {}
        self._fields: dict[str, memoryview[Any]] = {}
        row = records[index : index + 1]
        everything = row.view(np.uint8).data
        for name, (kind, at, *_) in (row.dtype.fields or {}).items():
            field = everything[at : at + kind.itemsize].cast(_FORMATS[kind.base.kind])  # type: ignore[call-overload]
            self._fields[name] = field
            if kind.shape:
                self._arrays[name] = row[name][0]
            else:
                self._words[name] = field

    def __getitem__(self, name: str) -> Any:
        word = self._words.get(name)
        return self._arrays[name] if word is None else word[0]

    def __setitem__(self, name: str, value: float) -> None:
        self._words[name][0] = value

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def words(self, name: str) -> memoryview[Any]:
        """The flat memory of a field of any number of dimensions."""
        return self._fields[name]

    def read(self, name: str, at: int, count: int) -> list[Any]:
        """Copy `count` words of a field, from word `at` on."""
        found: list[Any] = self._fields[name][at : at + count].tolist()
        return found

    def write(self, name: str, at: int, values: Sequence[float] | NDArray[Any]) -> None:
        """Store words of a field, from word `at` on. Raises `ValueError` if it is shorter."""
        field = self._fields[name]
        field[at : at + len(values)] = array(field.format, values)


_NUMBERS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "seed",
)
"""Sampling parameters that the slot holds in one word of the same name."""
_COUNTS = ("max_tokens", "num_draft_tokens", "likeliest")
_FLAGS = ("log_probabilities", "prompt_log_probabilities", "proposes", "reuses_kv", "trace")
"""Flags of the request that the slot holds in one word of the same name."""

_NO_PREDICTION = np.zeros(0, np.int64)

ANY = "auto"
"""Key of a drafter or growth rule that leaves the choice to the draft's process."""


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """The request of a session.

    prompt      [tokens] int64
    max_tokens  output limit
    pacing, drafter, growth, acceptance  registry keys of `card.speculation`; drafter and growth
                       may also be `ANY`
    num_draft_tokens   γ: draft passes before a verification in draft-then-verify, length of
                       PEARL's rounds
    log_probabilities  whether the target reports log-probabilities of output tokens
    likeliest          number of likeliest ids that the target reports at each position of the
                       output, and of the prompt if it scores the prompt
    prompt_log_probabilities  whether the target reports those of the prompt's tokens
    guide       grammar or schema of the text; None: the text is free
    proposes    whether the target may add n-gram candidates
    reuses_kv   whether the engines may reuse kept KV for this text, and keep its KV
    salt        [SALT_BYTES] only texts of equal salt share KV and n-grams; texts of `NO_SALT` share
                KV alone
    trace       whether the target reports each step
    draft_key_digest  SHA-256 of the key with which a device sends candidates (see `digest_of`);
                      None: the draft's process makes them
    prediction  [tokens] int64, the likely output, a source of n-grams
    """

    prompt: NDArray[np.int64]
    max_tokens: int
    pacing: str
    parameters: SamplingParameters
    num_draft_tokens: int = 8
    log_probabilities: bool = False
    drafter: str = ANY
    growth: str = ANY
    acceptance: str = "exact"
    likeliest: int = 0
    prompt_log_probabilities: bool = False
    guide: Guide | None = None
    proposes: bool = True
    reuses_kv: bool = True
    salt: bytes = NO_SALT
    trace: bool = False
    draft_key_digest: bytes | None = None
    prediction: NDArray[np.int64] = field(default_factory=lambda: _NO_PREDICTION)

    @property
    def is_remote(self) -> bool:
        """Whether a device sends the candidates, so that the draft computes none."""
        return self.draft_key_digest is not None


def digest_of(key: str) -> bytes:
    """SHA-256 of a key; the pool never holds the key itself."""
    return hashlib.sha256(key.encode()).digest()


def digest_words(digest: bytes) -> NDArray[np.int64]:
    """A digest as the pool's words, [DIGEST_WORDS] int64."""
    return np.frombuffer(digest, np.int64)


def choice_words(key: str) -> NDArray[np.int64]:
    """A registry key as a slot's words, [CHOICE_BYTES / 8] int64.

    Raises ValueError if the key is too long.
    """
    name = key.encode("ascii")
    if len(name) > CHOICE_BYTES:
        raise ValueError(f"{key} is longer than the {CHOICE_BYTES} bytes of a registry key")
    return np.frombuffer(name.ljust(CHOICE_BYTES, b"\0"), np.int64)


def _choice(words: NDArray[np.int64]) -> str:
    """The registry key in these words. Raises ValueError (UnicodeDecodeError) if there is none."""
    return words.tobytes().rstrip(b"\0").decode("ascii")


def write_request(record: Record, request: SlotRequest) -> None:
    """Fill the fields; readers use them only while the slot is open."""
    record["prompt_length"] = len(request.prompt)
    record["prompt"][: len(request.prompt)] = request.prompt
    for name in CHOICES:
        record[name][:] = choice_words(getattr(request, name))
    for name in (*_COUNTS, *_FLAGS):
        record[name] = getattr(request, name)
    record["salt"][:] = np.frombuffer(request.salt, np.int64)
    record["prediction_length"] = len(request.prediction)
    record["prediction"][: len(request.prediction)] = request.prediction
    parameters = request.parameters
    for name in _NUMBERS:
        record[name] = getattr(parameters, name)
    record["end_id_count"] = len(parameters.end_ids)
    record["end_ids"][: len(parameters.end_ids)] = parameters.end_ids
    biases = len(parameters.logit_bias)
    record["logit_bias_count"] = biases
    record["logit_bias_ids"][:biases] = [token for token, _ in parameters.logit_bias]
    record["logit_bias_values"][:biases] = [bias for _, bias in parameters.logit_bias]
    lengths = [len(word) for word in parameters.bad_words]
    record["bad_word_count"] = len(lengths)
    record["bad_word_lengths"][: len(lengths)] = lengths
    record["bad_word_tokens"][: sum(lengths)] = [t for word in parameters.bad_words for t in word]
    _write_guide(record, request.guide)
    # Always written, so that the key of the slot's session before never stays valid.
    record["draft_key_digest"][:] = (
        _NO_KEY if request.draft_key_digest is None else digest_words(request.draft_key_digest)
    )


def read_request(record: Record) -> SlotRequest:
    """The request in the fields. Raises ValueError if they hold none, as during a write."""
    lengths = record["bad_word_lengths"][: record["bad_word_count"]].tolist()
    tokens = record["bad_word_tokens"].tolist()
    words, at = [], 0
    for length in lengths:
        words.append(tuple(tokens[at : at + length]))
        at += length
    fields: dict[str, Any] = {
        **{name: _choice(record[name]) for name in CHOICES},
        **{name: record[name] for name in _COUNTS},
        **{name: bool(record[name]) for name in _FLAGS},
    }
    return SlotRequest(
        **fields,
        prompt=record["prompt"][: record["prompt_length"]].copy(),
        salt=record["salt"].tobytes(),
        prediction=record["prediction"][: record["prediction_length"]].copy(),
        parameters=SamplingParameters(
            bad_words=tuple(words),
            logit_bias=_logit_bias(record),
            end_ids=tuple(record["end_ids"][: record["end_id_count"]].tolist()),
            **{name: record[name] for name in _NUMBERS},
        ),
        guide=_read_guide(record),
        draft_key_digest=_read_key_digest(record),
    )


def _logit_bias(record: Record) -> tuple[tuple[int, float], ...]:
    count = record["logit_bias_count"]
    ids, values = record["logit_bias_ids"][:count], record["logit_bias_values"][:count]
    return tuple(zip(ids.tolist(), values.tolist(), strict=True))


_NO_KEY = np.zeros(DIGEST_WORDS, np.int64)
"""Stands for "no digest"; finding a key with this SHA-256 is infeasible."""


def _read_key_digest(record: Record) -> bytes | None:
    words = record["draft_key_digest"]
    return bytes(words.tobytes()) if words.any() else None


_NO_GUIDE = -1


def _write_guide(record: Record, guide: Guide | None) -> None:
    text = guide.text.encode() if guide is not None else b""
    record["guide_kind"] = GUIDE_TYPES.index(guide.kind) if guide is not None else _NO_GUIDE
    record["guide_length"] = len(text)
    words = np.frombuffer(text.ljust(-(-len(text) // 8) * 8), np.int64)
    record["guide"][: len(words)] = words


def _read_guide(record: Record) -> Guide | None:
    kind = record["guide_kind"]
    if kind == _NO_GUIDE:
        return None
    if not 0 <= kind < len(GUIDE_TYPES):
        raise ValueError(f"guide type {kind} is unknown; allowed: 0 to {len(GUIDE_TYPES) - 1}")
    text = record["guide"].tobytes()[: record["guide_length"]]
    return Guide(GUIDE_TYPES[kind], text.decode())
