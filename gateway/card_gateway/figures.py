"""Counts of one answer, and the metrics of all answers for `GET /metrics`.

The metrics have vLLM's names, for which dashboards exist. The server counts speculation
(`replica`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from card_gateway.generation import Piece


class Usage:
    """The counts of all texts of one answer so far.

    per_prompt  texts that are generated for each prompt; the prompt counts once
    """

    def __init__(self, per_prompt: int = 1) -> None:
        self._per_prompt = per_prompt
        self._last: dict[int, Piece] = {}

    def note(self, piece: Piece) -> None:
        """Take the counts of a piece: totals of its text so far."""
        self._last[piece.index] = piece

    @property
    def prompt_tokens(self) -> int:
        return sum(last.prompt_tokens for last in self._by_prompt.values())

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens with KV that the server had kept."""
        return sum(last.cached_tokens for last in self._by_prompt.values())

    @property
    def _by_prompt(self) -> dict[int, Piece]:
        """The last piece of the first text of each prompt. Other texts reuse the prompt's KV."""
        latest = sorted(self._last.items(), reverse=True)
        return {index // self._per_prompt: last for index, last in latest}

    @property
    def completion_tokens(self) -> int:
        return self.total("completion_tokens")

    def total(
        self, name: Literal["completion_tokens", "steps", "drafted", "accepted", "foreign"]
    ) -> int:
        """The sum of a count of `Piece` over all texts."""
        return sum(getattr(last, name) for last in self._last.values())

    def as_json(self) -> dict[str, Any]:
        """OpenAI's `usage`, with `speculation` for what OpenAI has no name. Without steps of the
        server there are no details."""
        found: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }
        if steps := self.total("steps"):
            drafted, accepted = self.total("drafted"), self.total("accepted")
            found["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
            found["completion_tokens_details"] = {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            }
            found["speculation"] = {
                "drafted": drafted,
                "accepted": accepted,
                "steps": steps,
                "tokens_per_step": round(self.completion_tokens / steps, 3),
                "foreign": self.total("foreign"),
            }
        return found


# Otherwise each counter has a series with the time at which it was made.
disable_created_metrics()  # type: ignore[no-untyped-call]

OTHER = "other"
"""Stands for every value outside the closed set of a label, because clients invent names."""
_METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS"})
_REASONS = frozenset({"stop", "length", "guide_failed"})

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Figures:
    """The metrics of one gateway. Each has the name of the gateway's model as a label."""

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model
        self._running = self._gauge("vllm:num_requests_running", "Requests being answered.")
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Tokens of prompts.")
        self._prefix_queries = self._counter(
            "vllm:prefix_cache_queries", "Tokens of prompts that might have been kept."
        )
        self._prefix_hits = self._counter(
            "vllm:prefix_cache_hits", "Tokens of prompts that the server had kept and did not read."
        )
        self._generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated.")
        self._first = self._histogram(
            "vllm:time_to_first_token_seconds", "From a request to its first token."
        )
        self._per_token = self._histogram(
            "vllm:time_per_output_token_seconds",
            "Per text: from its first token to its end, divided by the tokens after the first.",
        )
        self._whole = self._histogram(
            "vllm:e2e_request_latency_seconds", "From a request to the end of its answer."
        )
        self._finished = Counter(
            "vllm:request_success",
            "Texts that were answered to their end, by why they ended.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._answers = Counter(
            "card_gateway_http_requests",
            "HTTP requests answered, by route and status.",
            ["method", "route", "status"],
            registry=self._registry,
        )

    def exposition(self, replica: Iterable[Metric]) -> bytes:
        """The metrics of this gateway and those of `replica` in Prometheus's text format."""
        return generate_latest(self._registry) + generate_latest(_Collected(replica))

    def answered(self, method: str, route: str, status: int) -> None:
        """Count one HTTP request; `route` is the pattern of a route."""
        method = method if method in _METHODS else OTHER
        self._answers.labels(method, route, str(status)).inc()

    async def counted(
        self, pieces: AsyncGenerator[Piece, None], usage: Usage
    ) -> AsyncGenerator[Piece, None]:
        """Pass the pieces on, count them and note them in `usage`. Closes `pieces`."""
        began = time.monotonic()
        first: dict[int, float] = {}
        self._running.inc()
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    usage.note(piece)
                    now = time.monotonic()
                    if piece.completion_tokens and piece.index not in first:
                        first[piece.index] = now
                        self._first.observe(now - began)
                    if piece.finish_reason is not None:
                        self._finish(piece, now - first.get(piece.index, now))
                    yield piece
        finally:
            self._running.dec()
            self._whole.observe(time.monotonic() - began)
            self._add(usage)

    def _finish(self, last: Piece, seconds: float) -> None:
        reason = last.finish_reason if last.finish_reason in _REASONS else OTHER
        self._finished.labels(self._model, reason).inc()
        if last.completion_tokens > 1:
            self._per_token.observe(seconds / (last.completion_tokens - 1))

    def _add(self, usage: Usage) -> None:
        """Count the tokens of one answer, also of one that was cut off."""
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._prefix_queries.inc(usage.prompt_tokens)
        self._prefix_hits.inc(usage.cached_tokens)
        self._generation_tokens.inc(usage.completion_tokens)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model_name"], registry=self._registry).labels(self._model)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ["model_name"], registry=self._registry).labels(self._model)

    def _histogram(self, name: str, text: str) -> Histogram:
        family = Histogram(name, text, ["model_name"], registry=self._registry, buckets=_SECONDS)
        return family.labels(self._model)


class _Collected(Collector):
    """Metrics that were read elsewhere."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


class CountAnswers:
    """Counts every HTTP request by its route and the status of its answer."""

    def __init__(self, app: ASGIApp, figures: Figures) -> None:
        self._app = app
        self._figures = figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._figures.answered(scope["method"], _route_of(scope), message["status"])
            await send(message)

        await self._app(scope, receive, counted)


def _route_of(scope: Scope) -> str:
    """The route's pattern. Paths without a route share one name, because there are many."""
    return getattr(scope.get("route"), "path", OTHER)
