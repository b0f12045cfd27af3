"""The request of a session, and the view with which every role reads a slot.

A role's view has no method for fields that the role must not write.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from card.cache.header import Record, digest_words
from card.cache.layout import CHOICE_BYTES, CHOICES, DIGEST_WORDS, NO_SALT, Finish, SlotState
from card.constraints import GUIDE_TYPES, Guide
from card.sampling import SamplingParameters

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


class SlotView:
    """The part of a slot that every role may read."""

    def __init__(self, record: Record, index: int) -> None:
        self._record = record
        self.index = index
        self.capacity = len(record.words("node_token")) // 2
        """Most nodes of one tree."""

    @property
    def state(self) -> SlotState:
        return SlotState(self._record["state"])

    @property
    def session_id(self) -> int:
        return int(self._record["session_id"])

    def is_open(self, session_id: int) -> bool:
        """Whether the slot is open for the session of `session_id`."""
        record = self._record
        return bool(record["state"] == SlotState.OPEN and record["session_id"] == session_id)

    def request(self) -> SlotRequest:
        """The request, valid while the slot is open with the session id read before and after."""
        return read_request(self._record)

    def opened(self) -> tuple[int, SlotRequest] | None:
        """Session id and request of an open slot; None if the slot is not open, or changed while
        it was read."""
        session_id = self.session_id
        if not self.is_open(session_id):
            return None
        try:
            request = self.request()
        except ValueError:
            return None
        return (session_id, request) if self.is_open(session_id) else None

    def committed(self, session_id: int) -> int:
        """Output tokens that the target has committed to the session of `session_id`."""
        record = self._record
        if record["commit_session_id"] != session_id:
            return 0
        return int(record["committed"])

    def output(self, start: int, stop: int) -> NDArray[np.int64]:
        """Committed output tokens [stop - start] int64 (a copy)."""
        tokens: NDArray[np.int64] = self._record["output"][start:stop].copy()
        return tokens

    def finish(self, session_id: int) -> Finish:
        """Why the target stopped; valid only once the last token is committed."""
        record = self._record
        if record["commit_session_id"] != session_id:
            return Finish.RUNNING
        if record["committed"] != record["finish_length"]:
            return Finish.RUNNING  # a commit is under way, or a kill interrupted it
        return Finish(record["finish"])


class Stopwatch:
    """Divides a session's time between two counters of its slot, in nanoseconds."""

    def __init__(self, record: Record, running: str, waiting: str) -> None:
        self._record = record
        self._counters = (waiting, running)
        self.restart()

    def restart(self) -> None:
        """Begin another session; the time until its first look is not counted."""
        self._spent_ns = [int(self._record[name]) for name in self._counters]
        self._looked_ns: int | None = None
        self._runs = False

    def look(self, runs: bool) -> None:
        """Add the time since the last look to the counter of the state seen at that look."""
        now_ns = time.perf_counter_ns()
        if self._looked_ns is not None:
            self._spent_ns[self._runs] += now_ns - self._looked_ns
            self._record[self._counters[self._runs]] = self._spent_ns[self._runs]
        self._looked_ns, self._runs = now_ns, runs


View = TypeVar("View", bound=SlotView)


class SlotWatch:
    """Remembers states and session ids of all slots between two looks."""

    def __init__(self, slots: NDArray[np.void]) -> None:
        """slots  [slots] of a pool"""
        self._states = slots["state"]
        # A slot begins with its state and its session id.
        self._looked_at = slots.view(np.int64).reshape(len(slots), -1)[:, :2]
        self._seen = b""

    def look(self) -> bool:
        """Read all slots; returns whether any changed since the last look (first look: True)."""
        before = self._seen
        self._seen = self._looked_at.tobytes()
        return before != self._seen

    def opened(
        self, slots: Sequence[View], known: Container[int]
    ) -> Iterator[tuple[View, int, SlotRequest]]:
        """Slot, session id and request of every open slot with an index not in `known`. A slot
        that cannot be read yet is read again next time."""
        for index in (self._states == SlotState.OPEN).nonzero()[0].tolist():
            if index in known:
                continue
            slot = slots[index]
            opened = slot.opened()
            if opened is None:
                self.forget()
                continue
            session_id, request = opened
            yield slot, session_id, request

    def forget(self) -> None:
        """Make the next `look` return True, because a slot could not be read yet."""
        self._seen = b""
