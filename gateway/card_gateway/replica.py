"""The load and the speculation of one server, under the names that pickers of endpoints read.

The server's metrics hold the figures. This module fetches them and renames them as TensorRT-LLM's
Triton backend and vLLM do.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.client import HTTPException

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

ANSWER_S = 2.0
FRESH_S = 0.2
"""An older page is read anew: a picker asks twenty times a second, and the server renews its
figures four times a second."""

_PAST_PROXIES = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_COUNTERS = {
    "card_drafts_total": (
        "vllm:spec_decode_num_drafts",
        "Target steps that verified candidates.",
    ),
    "card_drafted_tokens_total": (
        "vllm:spec_decode_num_draft_tokens",
        "Candidates verified.",
    ),
    "card_accepted_tokens_total": (
        "vllm:spec_decode_num_accepted_tokens",
        "Candidates accepted.",
    ),
}
_ACCEPTED_AT = "card_accepted_at_total"
_GAUGES = (
    "card_queued_requests",
    "card_open_sessions",
    "card_kv_block_tokens",
    "card_kv_blocks",
    "card_kv_blocks_in_use",
)
_NAMES = (*_COUNTERS, _ACCEPTED_AT, *_GAUGES)
_WAYS = {
    "card_way_tokens_per_second": "Tokens per second of auto's latest passes, by way.",
    "card_way_share": "Share of the time of auto's latest passes, by way.",
}


@dataclass
class _Figures:
    """
    totals  value of each of `_NAMES`, summed over its labels
    places  accepted candidates by their place behind the text
    ways    value of each of `_WAYS` by way
    """

    totals: dict[str, float] = field(default_factory=dict)
    places: dict[str, float] = field(default_factory=dict)
    ways: dict[str, dict[str, float]] = field(default_factory=lambda: {name: {} for name in _WAYS})


class Replica:
    """The server behind a gateway that has one server.

    url    of the server's metrics; None: it is unknown, and there are no figures
    model  the name under which clients know the model
    """

    def __init__(self, url: str | None, model: str) -> None:
        self._url = url
        self._model = model
        self._asking = asyncio.Lock()
        self._page_at_s = -FRESH_S
        self._metrics: list[Metric] = []

    async def metrics(self) -> list[Metric]:
        """The figures, at most `FRESH_S` old. Empty while the server does not answer, so that a
        picker notices."""
        if self._url is None:
            return []
        async with self._asking:
            if time.monotonic() - self._page_at_s >= FRESH_S:
                page = await asyncio.to_thread(_page, self._url)
                self._metrics = [] if page is None else [*_renamed(_read(page), self._model)]
                self._page_at_s = time.monotonic()
            return self._metrics


def _page(url: str) -> str | None:
    try:
        with _PAST_PROXIES.open(url, timeout=ANSWER_S) as answer:
            return str(answer.read().decode())
    except (OSError, HTTPException, UnicodeDecodeError):
        return None


def _read(page: str) -> _Figures:
    names = (*_NAMES, *_WAYS)
    wanted = "\n".join(line for line in page.splitlines() if line.startswith(names))
    found = _Figures()
    for family in text_string_to_metric_families(wanted + "\n"):
        for sample in family.samples:
            if sample.name in _WAYS:
                found.ways[sample.name][sample.labels["way"]] = sample.value
                continue
            found.totals[sample.name] = found.totals.get(sample.name, 0.0) + sample.value
            if sample.name == _ACCEPTED_AT:
                found.places[sample.labels["position"]] = sample.value
    return found


def _renamed(figures: _Figures, model: str) -> Iterable[Metric]:
    totals = figures.totals
    if not totals.keys() >= set(_NAMES):
        return  # a server that is starting, or is none of ours
    blocks, used = totals["card_kv_blocks"], totals["card_kv_blocks_in_use"]
    yield _gauge(
        ("nv_trt_llm_request_metrics", "Requests by state.", "request_type"),
        {
            "waiting": totals["card_queued_requests"],
            "scheduled": totals["card_open_sessions"],
        },
        model,
    )
    yield _gauge(
        ("nv_trt_llm_kv_cache_block_metrics", "Blocks of KV.", "kv_cache_block_type"),
        {
            "tokens_per": totals["card_kv_block_tokens"],
            "max": blocks,
            "used": used,
            "free": blocks - used,
            "fraction": used / blocks if blocks else 0.0,
        },
        model,
    )
    for ours, (name, text) in _COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=["model_name"])
        counter.add_metric([model], totals[ours])
        yield counter
    places = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Candidates accepted, by their place behind the text.",
        labels=["model_name", "position"],
    )
    for place, count in figures.places.items():
        places.add_metric([model, place], count)
    yield places
    for name, text in _WAYS.items():
        gauge = GaugeMetricFamily(name, text, labels=["way"])
        for way, figure in figures.ways[name].items():
            gauge.add_metric([way], figure)
        yield gauge


def _gauge(named: tuple[str, str, str], values: dict[str, float], model: str) -> GaugeMetricFamily:
    name, text, label = named
    gauge = GaugeMetricFamily(name, text, labels=[label, "model"])
    for value, figure in values.items():
        gauge.add_metric([value, model], figure)
    return gauge
