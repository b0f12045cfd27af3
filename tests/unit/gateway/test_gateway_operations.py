"""The gateway before a stand-in for Triton: what browsers, operators and tools ask of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest
from client_double import response
from gateway_double import CHAT, PROMPT, RunningGateway, running_gateway, tell
from prometheus_client.parser import text_string_to_metric_families
from real_pair import TARGET

KEY = "secret"
PAGE = "https://page.example"
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
AUTHORISED = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningGateway]:
    with running_gateway(api_key=KEY, allowed_origins=(PAGE,), tokenizer=TARGET) as gateway:
        yield gateway


def asked(
    gateway: RunningGateway, method: str, path: str, headers: dict[str, str]
) -> tuple[int, dict[str, str], str]:
    with closing(gateway.connect()) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        names = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, names, answer.read().decode()


def test_a_browser_may_ask_from_an_allowed_page_alone(guarded: RunningGateway) -> None:
    """The question whether it may carries no key."""
    wants = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    status, headers, _ = asked(guarded, "OPTIONS", "/v1/completions", wants | {"Origin": PAGE})
    assert (status, headers["access-control-allow-origin"]) == (200, PAGE)
    other = asked(guarded, "OPTIONS", "/v1/completions", wants | {"Origin": "https://other"})
    assert other[0] == 400
    assert "access-control-allow-origin" not in other[1]
    status, headers, _ = guarded.ask("/v1/completions", PROMPT, {"Origin": PAGE} | AUTHORISED)
    assert (status, headers["access-control-allow-origin"]) == (200, PAGE)
    refused = guarded.ask("/v1/completions", PROMPT, {"Origin": PAGE})
    assert (refused[0], refused[1]["access-control-allow-origin"]) == (401, PAGE)


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/version", "/metrics"])
def test_head_is_get_without_a_body(guarded: RunningGateway, path: str) -> None:
    status, headers, text = asked(guarded, "HEAD", path, AUTHORISED)
    assert (status, text) == (200, "")
    assert int(headers["content-length"]) > 0


def test_a_compressed_body_is_415(guarded: RunningGateway) -> None:
    status, _, text = guarded.ask(
        "/v1/completions", b"x", AUTHORISED | {"Content-Encoding": "gzip"}
    )
    assert status == 415
    assert "without any" in json.loads(text)["error"]["message"]


@pytest.mark.parametrize(("given", "kept"), [("mine-1", True), ("no\tname", False), ("", False)])
def test_a_request_has_an_identifier_in_and_out(
    guarded: RunningGateway, given: str, kept: bool
) -> None:
    _, headers, text = guarded.ask("/v1/completions", PROMPT, AUTHORISED | {"X-Request-Id": given})
    identifier = headers["x-request-id"]
    assert (identifier == given) is kept
    assert identifier
    assert json.loads(text)["id"] == guarded.triton.requests[-1].id == f"cmpl-{identifier}"
    assert guarded.ask("/v1/models", None, {"X-Request-Id": "two"})[1]["x-request-id"] == "two"


def test_a_trace_is_carried_on_to_triton(guarded: RunningGateway) -> None:
    headers = AUTHORISED | {"Traceparent": TRACE, "Tracestate": "vendor=1"}
    assert guarded.ask("/v1/chat/completions", CHAT, headers)[0] == 200
    assert guarded.triton.metadata[-1]["traceparent"] == TRACE
    assert guarded.triton.metadata[-1]["tracestate"] == "vendor=1"
    assert guarded.ask("/v1/completions", PROMPT, AUTHORISED | {"Traceparent": "x"})[0] == 200
    assert "traceparent" not in guarded.triton.metadata[-1]


def test_metrics_count_tokens_and_speculation_under_the_names_of_vllm(
    guarded: RunningGateway,
) -> None:
    def samples() -> dict[str, float]:
        page = asked(guarded, "GET", "/metrics", AUTHORISED)[2]
        return {
            f"{sample.name}{sample.labels.get('position', '')}": sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if not sample.name.endswith("_bucket")
        }

    piece = response(
        text_output="x", num_input_tokens=3, num_output_tokens=6, finish_reason="length",
        target_steps=3, total_draft_tokens=8, total_accepted_draft_tokens=4,
    )  # fmt: skip
    tell(piece, speculation={"drafts": 2, "accepted_at": [2, 1, 1]}, cached_tokens=2)
    before = samples()
    guarded.triton.answer = lambda _: [piece]
    guarded.ask("/v1/completions", PROMPT | {"n": 2}, AUTHORISED)
    gained = {name: value - before.get(name, 0.0) for name, value in samples().items()}
    assert gained["vllm:prompt_tokens_total"] == 3, "both texts have one prompt"
    assert gained["vllm:prefix_cache_queries_total"] == 3
    assert gained["vllm:prefix_cache_hits_total"] == 2
    assert gained["vllm:generation_tokens_total"] == 12
    assert gained["vllm:spec_decode_num_drafts_total"] == 4
    assert gained["vllm:spec_decode_num_draft_tokens_total"] == 16
    assert gained["vllm:spec_decode_num_accepted_tokens_total"] == 8
    places = [gained[f"vllm:spec_decode_num_accepted_tokens_per_pos_total{n}"] for n in range(3)]
    assert places == [4, 2, 2]
    assert gained["vllm:time_to_first_token_seconds_count"] == 2
    assert gained["vllm:e2e_request_latency_seconds_count"] == 1
    assert gained["vllm:num_requests_running"] == 0


def test_text_becomes_tokens_and_text_again(guarded: RunningGateway) -> None:
    guarded.triton.parameters = {"context_tokens": "2304"}
    body = {"model": "ensemble", "prompt": "def f(n):", "return_token_strs": True}
    status, _, text = guarded.ask("/tokenize", body, AUTHORISED)
    told = json.loads(text)
    assert (status, told["count"], told["max_model_len"]) == (200, len(told["tokens"]), 2304)
    assert "".join(told["token_strs"]) == "def f(n):"
    _, _, text = guarded.ask("/detokenize", {"tokens": told["tokens"]}, AUTHORISED)
    assert json.loads(text) == {"prompt": "def f(n):"}
    chat = guarded.ask("/tokenize", {"messages": CHAT["messages"]}, AUTHORISED)
    assert json.loads(chat[2])["count"] > 1
    assert guarded.ask("/tokenize", {}, AUTHORISED)[0] == 400
    listed = json.loads(asked(guarded, "GET", "/v1/models", AUTHORISED)[2])
    assert listed["data"][0]["max_model_len"] == 2304
