"""The layout of the pool: its fields and their writers.

Every field is an aligned 8-byte word, so a load or store is never torn. Fields are grouped by
their one writer (a bell alone has several) and each group starts a new cache line, so no writer
slows another down.

The protocol is validate, don't lock: a writer stores the record first and its count (or flag)
last; a reader loads the count first. This needs x86-64, where stores become visible in program
order; `Pool` refuses to work elsewhere.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import IntEnum

import numpy as np

CACHE_LINE = 64
WORD_BYTES = 8
MAGIC = 0x31_44_52_41_43_00_00_13  # "CARD1" and the layout's version
ENGINES = ("draft", "target")
BEATING = ("card", *ENGINES)
"""Processes that write heartbeats."""
MAX_ROWS = 64
"""Most rows of one target pass; bounds the tokens-per-step histogram."""
TARGET_COUNTERS = (
    "steps",
    "queries",
    "hits",
    "misses",
    "corrections",
    "drafts",
    "drafted",
    "accepted",
    "foreign",
    "reuses",
    "reused_tokens",
    "target_running_ns",
    "target_waiting_ns",
)
DRAFT_COUNTERS = (
    "re_roots",
    "restarts",
    "layers",
    "lost_layers",
    "saved_rows",
    "draft_running_ns",
    "draft_idle_ns",
)
"""Counters of one session, 0 when its engine takes it up; `card` exports them."""
WAYS = ("alone", "ngrams", "turns", "beside")
"""Ways of a pass of `auto`: the draft rests, without candidates and with n-grams; the target waits
for the draft's turn; the draft works beside the target."""
STEPS_KEPT = 64
"""Latest steps of a session that `card` can read, if its request asks for steps."""
STEP_NUMBERS = 7
"""Words of one reported step, see `card.cache.reports`."""
MAX_END_IDS = 64
"""Most ids that may end one text: the model's own and those of its request."""
MAX_REFUSALS = 16
"""Most refusal reasons that `preprocessing` counts separately."""
CHOICES = ("pacing", "drafter", "growth", "acceptance")
"""How a session speculates: registry keys of `card.speculation`, in ASCII, filled up with zeros."""
CHOICE_BYTES = 24
LONGEST_CHAIN = MAX_ROWS
"""Most candidates of a remote draft: a pass verifies no more."""
DIGEST_WORDS = 4
"""Words of a SHA-256 digest, the only form in which the pool holds keys."""
SALT_BYTES = 16
"""Bytes of a salt, which separates the KV and n-grams that requests share."""
STATE_BYTES = 2
"""Bytes of one number of a hidden state."""
NO_SALT = bytes(SALT_BYTES)
"""The salt of requests that name none."""

Word = type[np.int64] | type[np.uint64] | type[np.float64]
Field = tuple[str, Word] | tuple[str, Word, tuple[int, ...]]


class SlotState(IntEnum):
    """Written by `card` alone."""

    FREE = 0
    OPEN = 1
    CLOSED = 2


class Finish(IntEnum):
    """Why the target stopped committing to a slot."""

    RUNNING = 0
    LENGTH = 1
    END_ID = 2
    FAILED = 3
    GUIDE_FAILED = 4
    GUIDE_ITEMS = 5
    GUIDE_FUEL = 6
    GUIDE_STATES = 7


class EngineState(IntEnum):
    """State of an engine process, as the process reports it."""

    ABSENT = 0
    LOADED = 1
    ATTACHED = 2


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes that fix the layout; a pool of another geometry is never reopened.

    queue       requests that may wait for a slot
    guide       most bytes of a text's guide
    logit_bias  ids that a request may bias
    likeliest   likeliest ids that a request may ask for at each position
    state_tokens   most tokens with hidden states in a slot
    state_numbers  numbers of one token's hidden states; 0: no draft reads any
    """

    slots: int
    nodes: int
    prompt: int
    output: int
    bad_words: int
    bad_word_tokens: int
    queue: int = 0
    logit_bias: int = 0
    likeliest: int = 0
    guide: int = 0
    state_tokens: int = 0
    state_numbers: int = 0

    @property
    def places(self) -> int:
        """Places of requests: one for every slot, by its index, then one for each in the queue."""
        return self.slots + self.queue

    def words(self) -> tuple[int, ...]:
        return tuple(astuple(self))


def whole_lines(size: int) -> int:
    """`size` in bytes, rounded up to whole cache lines."""
    return -(-size // CACHE_LINE) * CACHE_LINE


def _lines(*groups: list[Field]) -> np.dtype[np.void]:
    """A structured dtype in which each group starts on a cache line."""
    names: list[str] = []
    formats: list[object] = []
    offsets: list[int] = []
    at = 0
    for group in groups:
        for field in group:
            name, kind, *shape = field
            dtype = np.dtype((kind, shape[0] if shape else ()))
            names.append(name)
            formats.append(dtype)
            offsets.append(at)
            at += dtype.itemsize
        at = whole_lines(at)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": at})


def header_dtype() -> np.dtype[np.void]:
    """The pool's first bytes: identity; epoch and heartbeat (`card`); engines; refusals."""
    word = np.int64
    engines: list[list[Field]] = [
        [
            (f"{name}_pid", word),
            (f"{name}_heartbeat_ns", word),
            (f"{name}_state", word),
            (f"{name}_denials", word),
        ]
        for name in ENGINES
    ]
    return _lines(
        [("magic", word), ("geometry", word, (len(Geometry.__slots__),))],
        [
            ("epoch", word),
            ("next_session_id", word),
            ("slot_bell", word),
            ("key_digest", word, (DIGEST_WORDS,)),
        ],
        [("card_pid", word), ("card_heartbeat_ns", word)],
        *engines,
        # draft
        [
            ("draft_waiting_ns", word),
            ("draft_busy_ns", word),
            ("draft_passes", word),
            ("draft_pass_ms", np.float64),
        ],
        # target
        [
            ("commit_bell", word),
            ("draft_stopped", word),
            ("target_passes", word),
            ("way_tokens", np.float64, (len(WAYS),)),
            ("way_seconds", np.float64, (len(WAYS),)),
        ],
        # preprocessing
        [("refusals", word, (MAX_REFUSALS,))],
    )


def slot_dtype(geometry: Geometry) -> np.dtype[np.void]:
    """One slot: request (card), commits (target), tree (draft), chain (remote)."""
    word, real = np.int64, np.float64
    nodes = (2, geometry.nodes)
    state_words = -(-geometry.state_numbers * STATE_BYTES // WORD_BYTES)
    states: list[list[Field]] = [
        [(f"states_{name}", word) for name in ("turn", "session_id", "first", "claimed", "end")],
        [("states", word, (geometry.state_tokens, state_words))],
    ]
    return _lines(
        # card
        [("state", word), ("session_id", word)],
        [
            ("prompt_length", word),
            ("max_tokens", word),
            *((name, word, (CHOICE_BYTES // WORD_BYTES,)) for name in CHOICES),
            ("num_draft_tokens", word),
            ("temperature", real),
            ("top_k", word),
            ("top_p", real),
            ("min_p", real),
            ("repetition_penalty", real),
            ("presence_penalty", real),
            ("frequency_penalty", real),
            ("min_tokens", word),
            ("seed", np.uint64),
            ("end_id_count", word),
            ("end_ids", word, (MAX_END_IDS,)),
            ("log_probabilities", word),
            ("likeliest", word),
            ("prompt_log_probabilities", word),
            ("proposes", word),
            ("reuses_kv", word),
            ("salt", word, (SALT_BYTES // WORD_BYTES,)),
            ("trace", word),
            ("logit_bias_count", word),
            ("bad_word_count", word),
            ("guide_kind", word),
            ("guide_length", word),
            ("prediction_length", word),
            ("prompt", word, (geometry.prompt,)),
            ("prediction", word, (geometry.output,)),
            ("bad_word_lengths", word, (max(1, geometry.bad_words),)),
            ("bad_word_tokens", word, (max(1, geometry.bad_word_tokens),)),
            ("logit_bias_ids", word, (max(1, geometry.logit_bias),)),
            ("logit_bias_values", real, (max(1, geometry.logit_bias),)),
            ("guide", word, (geometry.guide // 8 + 1,)),
            ("draft_key_digest", word, (DIGEST_WORDS,)),
        ],
        # target
        [
            ("released", word),
            ("commit_session_id", word),
            ("committed", word),
            ("finish", word),
            ("finish_length", word),
            ("stopped_until", word),
            ("verifying", word),
            ("awaited", word),
        ],
        [
            *((name, word) for name in TARGET_COUNTERS),
            ("tokens_per_step", word, (MAX_ROWS + 1,)),
            ("accepted_at", word, (MAX_ROWS,)),
        ],
        [
            ("output", word, (geometry.output,)),
            ("is_accepted", word, (geometry.output,)),
            ("log_probability", real, (geometry.output,)),
        ],
        [
            ("prompt_log_probability", real, (geometry.prompt,)),
            ("likeliest_of_prompt", word, (geometry.prompt, max(1, geometry.likeliest))),
            ("likeliest_of_output", word, (geometry.output, max(1, geometry.likeliest))),
        ],
        [
            ("steps_written", word),
            ("step_numbers", word, (STEPS_KEPT, STEP_NUMBERS)),
            ("step_token", word, (STEPS_KEPT, MAX_ROWS)),
            ("step_parent", word, (STEPS_KEPT, MAX_ROWS)),
        ],
        *(states if geometry.state_numbers else ()),
        # draft
        [
            ("flip", word),
            ("tree_session_id", word, (2,)),
            ("root_length", word, (2,)),
            ("node_count", word, (2,)),
            ("passes", word, (2,)),
            ("exhausted", word, (2,)),
            *((name, word) for name in DRAFT_COUNTERS),
        ],
        [
            ("node_token", word, nodes),
            ("node_parent", word, nodes),
            ("node_score", real, nodes),
        ],
        # remote
        [
            ("chain_flip", word),
            ("chain_session_id", word, (2,)),
            ("chain_root_length", word, (2,)),
            ("chain_length", word, (2,)),
        ],
        [("chain_token", word, (2, LONGEST_CHAIN))],
    )
