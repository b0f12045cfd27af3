"""From committed tokens to responses: one request's text, gathered over an interval."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from card.cache import SlotCounters
from card.cores import usable_cores
from card.serving.requests.delta import (
    FINISH_REASONS,
    SIGN_NS,
    Delta,
    Numbers,
    ScoredToken,
    details_json,
    written,
)
from card.serving.requests.trace import Event
from card.serving.requests.wire import GenerateRequest
from card.settings import ServingSettings
from card.text import Detokenizer


class Stream:
    """Turns one request's tokens into deltas, without slots or Triton.

    The first delta is ready at once. The caller sets the interval over which later deltas are
    gathered. While there is no new text (a long prompt, tokens without text, a dead target) the
    stream sends an empty delta now and then. A request that does not stream gets its whole text in
    its last delta.
    """

    def __init__(
        self,
        request: GenerateRequest,
        detokenizer: Detokenizer,
        prompt_text: str,
        *,
        arrival_ns: int,
        kv_block: int = 0,
    ) -> None:
        """`kv_block` is the number of tokens of a block of the target's KV; 0: unknown."""
        self._kv_block = kv_block
        self.request = request
        self._detokenizer = detokenizer
        self._arrival_ns = arrival_ns
        self._scheduled_ns = 0
        self._first_token_ns = 0
        self._last_token_ns = 0
        self._sent_ns: int | None = None
        self.finish_reason = ""
        with_prompt = not request.stream and not request.exclude_input_in_output
        self._text = prompt_text if with_prompt else ""
        self._text_bytes = len(self._text.encode())
        self._accepted_bytes = 0
        self._log_probs: list[float] = []
        self._tokens: list[int] = []
        self._scored: list[ScoredToken] = []
        self._prompt: list[str] = []
        self.prompt_scored = 0
        """The prompt's tokens with scores so far."""
        self._cum_log_probs = 0.0
        self._trace: list[Event] = []

    @property
    def is_for_device(self) -> bool:
        """Whether a device drafts for this text and so gets all its tokens."""
        return self.request.draft_key is not None

    @property
    def finished(self) -> bool:
        """Whether the next delta is the last, because no token can follow."""
        return bool(self.finish_reason)

    def schedule(self) -> None:
        """Record that the request got a slot."""
        self._scheduled_ns = time.monotonic_ns()

    def push(
        self,
        tokens: Sequence[int],
        accepted: Sequence[bool],
        log_probs: Sequence[float],
        now_ns: int,
        likeliest: Sequence[Sequence[tuple[int, float]]] = (),
    ) -> None:
        """Add committed tokens; a stop word among them finishes the text.

        likeliest  likeliest ids at each token's position, if the request asks for them
        """
        used_before = self._detokenizer.tokens_used
        piece = self._detokenizer.push(tokens, accepted)
        used = self._detokenizer.tokens_used - used_before
        self._gather(piece.text, piece.accepted_bytes)
        if self.request.return_log_probs:
            self._log_probs += log_probs[:used]
            self._cum_log_probs += sum(log_probs[:used])
            tops = likeliest or [()] * used
            self._scored += map(ScoredToken, tokens[:used], log_probs[:used], tops[:used])
        self._tokens += tokens[:used]
        if used and not self._first_token_ns:
            self._first_token_ns = now_ns
        if used:
            self._last_token_ns = now_ns
        if self._detokenizer.stopped:
            self.finish_reason = "stop"

    def score_prompt(self, tokens: Sequence[ScoredToken]) -> None:
        """Put the scores of the prompt's next tokens into the first delta with a token."""
        self._prompt += map(written, tokens)
        self.prompt_scored += len(tokens)

    def follow(self, events: Sequence[Event]) -> None:
        """Put events of speculation into the next delta."""
        self._trace += events

    def finish(self, reason: Literal["stop", "length"]) -> None:
        """Finish the text, because the target commits no more tokens."""
        if self.finished:
            return
        piece = self._detokenizer.finish()
        self._gather(piece.text, piece.accepted_bytes)
        self.finish_reason = "stop" if self._detokenizer.stopped else reason

    def due_ns(self, gather_ns: int) -> float:
        """Earliest time to send text that comes now, for a gathering interval of `gather_ns`;
        infinite for a request that does not stream."""
        if not self.request.stream:
            return math.inf
        return 0 if self._sent_ns is None else self._sent_ns + gather_ns

    def is_due(self, now_ns: int, gather_ns: int) -> bool:
        """Whether a delta should be sent now."""
        has_news = bool(self._text or (self.is_for_device and self._tokens))
        if self.finished or (has_news and now_ns >= self.due_ns(gather_ns)):
            return True
        silent_since_ns = self._sent_ns or self._scheduled_ns or now_ns
        return self.request.stream and now_ns - silent_since_ns >= SIGN_NS

    def sign(self, place: int, session_id: int) -> Delta:
        """An empty delta of a request that waits for a slot, with the numbers known so far."""
        request = self.request
        return Delta(
            "",
            Numbers(
                place,
                session_id,
                num_input_tokens=len(request.input_ids) * request.return_num_input_tokens,
                arrival_time_ns=self._arrival_ns * request.return_perf_metrics,
            ),
            () if request.return_log_probs else None,
        )

    def take(self, place: int, session_id: int, counters: SlotCounters, now_ns: int) -> Delta:
        """The next delta; removes its content from the stream."""
        request, asked = self.request, self.request.return_perf_metrics
        prompt = self._prompt if self._tokens or self.finished else []
        blocks, reused = self._kv_blocks(counters) if asked and self._kv_block else (0, 0)
        delta = Delta(
            self._text,
            Numbers(
                place=place,
                session_id=session_id,
                accepted_bytes=self._accepted_bytes,
                finish_reason=FINISH_REASONS.index(self.finish_reason),
                num_input_tokens=len(request.input_ids) * request.return_num_input_tokens,
                num_output_tokens=self._detokenizer.tokens_used * request.return_num_output_tokens,
                total_accepted_draft_tokens=counters.accepted * asked,
                total_draft_tokens=counters.drafted * asked,
                target_steps=counters.steps * asked,
                cache_queries=counters.queries * asked,
                cache_hits=counters.hits * asked,
                foreign_tokens=counters.foreign,
                kv_blocks=blocks,
                reused_kv_blocks=reused,
                arrival_time_ns=self._arrival_ns * asked,
                first_scheduled_time_ns=self._scheduled_ns * asked,
                first_token_time_ns=self._first_token_ns * asked,
                last_token_time_ns=self._last_token_ns * asked,
            ),
            tuple(self._log_probs) if self.request.return_log_probs else None,
            self._cum_log_probs,
            tuple(self._tokens),
            details_json(
                prompt,
                self._scored,
                counters if asked and self.finished else None,
                self._trace,
                self._tokens if self.is_for_device else (),
            ),
        )
        self._text, self._text_bytes, self._accepted_bytes = "", 0, 0
        if prompt:
            self._prompt = []
        self._log_probs, self._tokens, self._scored = [], [], []
        self._trace = []
        self._sent_ns = now_ns
        return delta

    def _kv_blocks(self, counters: SlotCounters) -> tuple[int, int]:
        """Number of KV blocks that prompt and text fill or begin, and number of reused blocks."""
        tokens = len(self.request.input_ids) + self._detokenizer.tokens_used
        return -(-tokens // self._kv_block), counters.reused_tokens // self._kv_block

    def _gather(self, text: str, accepted_bytes: int) -> None:
        """Append text; count bytes from the cache only while all text before came from it too."""
        if self._accepted_bytes == self._text_bytes:
            self._accepted_bytes += accepted_bytes
        self._text += text
        self._text_bytes += len(text.encode())


_DELTAS_PER_CORE = 100
"""Deltas per second and core of this machine, unless the settings say otherwise: a delta takes a
core for 1 ms, and the engines need the cores too."""

_LONGEST_NS = 1_000_000_000
"""Longest interval for any number of streams."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """An interval of at least `flush_ns`. With many streams it grows, so that all streams together
    send a limited number of deltas per second (first and last ones not counted). It is at most a
    second."""

    flush_ns: int
    deltas_per_s: float

    @classmethod
    def of(cls, serving: ServingSettings) -> Gathering:
        deltas_per_s = serving.deltas_per_s or _DELTAS_PER_CORE * usable_cores()
        return cls(int(serving.flush_ms * 1e6), deltas_per_s)

    def interval_ns(self, streams: int, *, for_device: bool = False) -> int:
        """Interval between two deltas of each of `streams` streams.

        for_device  a device drafts for the stream, so its text is sent without gathering
        """
        shared_ns = min(int(streams / self.deltas_per_s * 1e9), _LONGEST_NS)
        return shared_ns if for_device else max(self.flush_ns, shared_ns)
