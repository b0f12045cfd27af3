"""What the real service tells those who run it: metrics, log lines, traces."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from otlp_collector import Collector, attributes, running_collector
from prometheus_client.parser import text_string_to_metric_families
from prometheus_server import check_with_promtool
from running_doors import MODEL, running_gateway
from running_service import UNLIKE_OTHERS, RunningService, StartService

from card.serving.metrics import FAMILIES
from card.serving.metrics.exporter import DECODINGS, labels_of

SECRET = "a_prompt_that_nobody_may_read"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def generate(service: RunningService, headers: dict[str, str] | None = None, **body: Any) -> None:
    """One streamed request over HTTP, which carries an id and headers."""
    url = f"{service.http}/v2/models/ensemble/generate_stream"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers or {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert b"text_output" in answer.read()


# --- metrics -------------------------------------------------------------------------------------


def test_the_server_exposes_exactly_the_families_of_the_table(server: RunningService) -> None:
    text = page(server.settings.serving.metrics_port)
    told = {
        family.name: family
        for family in text_string_to_metric_families(text)
        if family.name.startswith("card_")
    }
    # The parser, as OpenMetrics does, leaves `_total` to the samples.
    assert set(told) == {family.name.removesuffix("_total") for family in FAMILIES}
    for family in FAMILIES:
        seen = told[family.name.removesuffix("_total")]
        assert (seen.type, seen.documentation) == (family.kind, family.help)
        suffix = "_count" if family.kind == "histogram" else ""
        series = {labels_of(s.labels) for s in seen.samples if s.name == family.name + suffix}
        assert series == set(family.series())


def test_promtool_finds_nothing_to_complain_about_in_the_supervisors_page(
    server: RunningService,
) -> None:
    text = page(server.settings.serving.health_port)
    assert "card_service_ready 1.0" in text
    check_with_promtool("check", "metrics", stdin=text)


async def test_each_decoding_mode_is_counted_apart(server: RunningService) -> None:
    names = (
        "card_committed_tokens_total", "card_target_steps_total", "card_tokens_per_step_count",
        "card_requests_total", "card_time_to_first_token_seconds_count",
        "card_inter_token_latency_seconds_count", "card_time_per_output_token_seconds_count",
        "card_queue_time_seconds_count", "card_request_duration_seconds_count",
        "card_queries_total", "card_query_hits_total", "card_re_roots_total",
        "card_drafted_tokens_total", "card_accepted_tokens_total",
        "card_draft_running_seconds_total", "card_target_running_seconds_total",
        "card_target_wait_seconds_total",
    )  # fmt: skip

    def told() -> dict[tuple[str, str], float]:
        return {(n, mode): server.metric(n, decoding=mode) for n in names for mode in DECODINGS}

    request: dict[str, Any] = {"text_input": "def f(x):", "max_tokens": 48, **UNLIKE_OTHERS}
    for decoding in DECODINGS:
        before = told()
        await server.text(decoding=decoding, **request)
        counted = {"card_committed_tokens_total": 48, "card_requests_total": 1}
        expected = {name: before[name, decoding] + count for name, count in counted.items()}

        def all_counted(mode: str = decoding, wanted: dict[str, float] = expected) -> bool:
            return {name: server.metric(name, decoding=mode) for name in wanted} == wanted

        await server.until(all_counted, f"the tokens and the request of {decoding} are counted")
        grown = {key: value - before[key] for key, value in told().items() if value != before[key]}
        assert {mode for _, mode in grown} == {decoding}
        once = [name for name in names if grown.get((name, decoding)) == 1]
        assert {"card_requests_total", "card_queue_time_seconds_count"} <= set(once), grown
        assert "card_time_to_first_token_seconds_count" in once
        speculates = decoding != "autoregressive"
        assert (("card_queries_total", decoding) in grown) == speculates
        assert (("card_draft_running_seconds_total", decoding) in grown) == speculates
        assert (("card_re_roots_total", decoding) in grown) == speculates
        waited = ("card_target_wait_seconds_total", decoding) in grown
        if decoding in ("card", "autoregressive"):
            assert not waited  # no request waits
        elif decoding == "draft_then_verify":
            assert waited


# --- logs and traces -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def observed(start_service: StartService, collector: Collector) -> Iterator[RunningService]:
    """JSON lines with prompts, and traces of requests that ask: the rate reaches no other one."""
    observability = {
        "log_format": "json",
        "log_prompts": True,
        "trace_url": collector.url,
        "trace_rate": 1_000_000,
    }
    with start_service({"observability": observability}) as service:
        yield service


def events(service: RunningService) -> list[dict[str, Any]]:
    lines = service.log.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def ask_with_ids(service: RunningService) -> None:
    """One request that is answered, and one to each of two models that is refused; all of them name
    the secret."""
    generate(service, id="good-1", text_input=f"def {SECRET}():", max_tokens=8, stream=True)
    for model, number in (("ensemble", 1), ("card", 2)):
        inputs = {"input_ids": [[1]]} if model == "card" else {"text_input": SECRET}
        status, _ = service.generate(
            model=model, id=f"bad-{number}", stop_words=SECRET * 20, **inputs
        )
        assert status == 400


async def test_every_request_leaves_a_line_with_its_id_and_its_prompt_if_asked_to(
    observed: RunningService,
) -> None:
    ask_with_ids(observed)

    def told() -> dict[str, dict[str, Any]]:
        return {event["request_id"]: event for event in events(observed) if "request_id" in event}

    await observed.until(lambda: {"good-1", "bad-1", "bad-2"} <= set(told()), "three lines")
    good, bad = told()["good-1"], told()["bad-1"]
    assert (good["component"], good["event"], good["outcome"]) == ("card", "answered", "length")
    assert (good["decoding"], good["tokens"]) == ("card", 8)
    assert good["prompt"] == f"def {SECRET}():"
    assert 0 < good["first_token_seconds"] <= good["seconds"]
    assert (bad["component"], bad["event"]) == ("preprocessing", "refused")
    assert (bad["code"], bad["field"]) == ("INVALID_ARGUMENT", "stop_words")
    assert SECRET in json.dumps(bad)
    assert told()["bad-2"]["component"] == "card"


async def test_all_lines_of_ours_are_json_objects(observed: RunningService) -> None:
    told = events(observed)
    assert {event["component"] for event in told} >= {"supervisor"}
    assert all({"time", "level", "component", "event"} <= set(event) for event in told)
    supervisors = [event["event"] for event in told if event["component"] == "supervisor"]
    assert [event for event in supervisors if event in {"starting", "ready"}] == [
        "starting",
        "ready",
    ]
    assert "level=" not in observed.log.read_text(encoding="utf-8")


async def test_a_request_becomes_a_trace_of_its_caller(
    observed: RunningService, collector: Collector
) -> None:
    generate(observed, id="untraced-1", text_input="def f(x):", max_tokens=8, stream=True)
    generate(
        observed, {"traceparent": f"00-{TRACE}-{PARENT}-01"},
        id="traced-1", text_input="def f(x):", max_tokens=8, stream=True,
    )  # fmt: skip

    def spans() -> list[dict[str, Any]]:
        return [
            span
            for span in collector.spans
            if attributes(span).get("triton.request_id") == "traced-1"
        ]

    parts = {"ensemble", "preprocessing", "card", "postprocessing"}
    await observed.until(lambda: parts <= {span["name"] for span in spans()}, "all spans arrive")
    assert {span["traceId"] for span in spans()} == {TRACE}
    (root,) = [span for span in collector.spans if span.get("parentSpanId") == PARENT]
    by_id = {span["spanId"]: span for span in collector.spans}
    for span in spans():
        while span is not root:
            span = by_id[span["parentSpanId"]]
    assert {resource["service.name"] for resource in collector.resources} == {"card"}
    with running_gateway(observed) as door:
        door.client().completions.create(
            model=MODEL, prompt="def f(x):", max_tokens=8,
            extra_headers={"traceparent": f"00-{TRACE[::-1]}-{PARENT}-01", "x-request-id": "door"},
        )  # fmt: skip

    def names() -> set[str]:
        return {span["name"] for span in collector.spans if span["traceId"] == TRACE[::-1]}

    await observed.until(lambda: parts <= names(), "the spans of a request through the gateway")
    told = json.dumps(collector.spans)
    assert "untraced-1" not in told
    assert "def f(x)" not in told
