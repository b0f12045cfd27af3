"""The gateway before a stand-in for Triton: what browsers, operators and tools ask of it."""

from __future__ import annotations

import http.server
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from client_double import response
from gateway_double import CHAT, PROMPT, RunningGateway, events, running_gateway, tell
from gateway_models import directory
from prometheus_client.parser import text_string_to_metric_families
from real_pair import TARGET
from tokenizers import Tokenizer

from loading.supervised import reserved_ports

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


def test_metrics_when_texts_end_count_their_tokens_under_the_names_of_vllm(
    guarded: RunningGateway,
) -> None:
    def samples() -> dict[str, float]:
        page = asked(guarded, "GET", "/metrics", AUTHORISED)[2]
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if not sample.name.endswith("_bucket")
        }

    piece = response(
        text_output="x", num_input_tokens=3, num_output_tokens=6, finish_reason="length"
    )
    tell(piece, cached_tokens=2)
    before = samples()
    guarded.triton.answer = lambda _: [piece]
    guarded.ask("/v1/completions", PROMPT | {"n": 2}, AUTHORISED)
    gained = {name: value - before.get(name, 0.0) for name, value in samples().items()}
    assert gained["vllm:prompt_tokens_total"] == 3, "both texts have one prompt"
    assert gained["vllm:prefix_cache_queries_total"] == 3
    assert gained["vllm:prefix_cache_hits_total"] == 2
    assert gained["vllm:generation_tokens_total"] == 12
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
    assert guarded.ask("/detokenize", {"tokens": [1 << 30]}, AUTHORISED)[0] == 400
    listed = json.loads(asked(guarded, "GET", "/v1/models", AUTHORISED)[2])
    assert listed["data"][0]["max_model_len"] == 2304


def test_tokenizer_info_when_asked_gives_special_tokens_and_the_template(tmp_path: Path) -> None:
    source = "{{ eos_token }}"
    with running_gateway(tokenizer=directory(tmp_path, chat_template=source)) as gateway:
        told = json.loads(gateway.ask("/tokenizer_info")[2])
    assert told == {"bos_token": "<s>", "eos_token": "</s>", "chat_template": source}


TOKENIZER = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
DEF, SELF = (TOKENIZER.encode(text, add_special_tokens=False).ids[0] for text in ("def", " self"))
STEP = {"us": 9, "behind": 0, "queried_us": 5, "candidates": [[SELF, -1]], "drafted": 1,
        "accepted": 0, "tokens": [DEF]}  # fmt: skip
TREE = {"us": 4, "behind": 0, "known": 0, "nodes": [[SELF, -1, -0.5], [DEF, 0, -1.0]]}


def test_a_browser_gets_the_page_without_a_key_and_no_text_without_one() -> None:
    with running_gateway(page=True, api_key=KEY) as gateway:
        kinds = {"/": "text/html", "/page.js": "text/javascript", "/page.css": "text/css"}
        for path, kind in kinds.items():
            status, headers, text = gateway.ask(path)
            assert (status, headers["content-type"]) == (200, f"{kind}; charset=utf-8")
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
        for path in ("/v1/models", "/metrics"):
            assert gateway.ask(path)[0] == 401
        assert gateway.ask("/v1/completions", PROMPT)[0] == 401


@pytest.mark.parametrize("body", [PROMPT, CHAT])
def test_stream_when_a_trace_is_asked_for_has_events_of_speculation(body: dict[str, Any]) -> None:
    """Each token's text once, where the event is that names it first."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    with running_gateway(tokenizer=TARGET) as gateway:
        gateway.triton.answer = lambda _: pieces()
        _, _, text = gateway.ask(path, body | {"stream": True, "return_trace": True})
        assert gateway.sent()["return_trace"] == b"\x01"
        told = [
            event["choices"][0]["trace"]
            for event in events(text)[:-1]
            if "trace" in event["choices"][0]
        ]
        assert told[0] == {"events": [TREE], "texts": {str(SELF): " self", str(DEF): "def"}}
        assert told[1] == {"events": [STEP], "texts": {}}
        _, _, text = gateway.ask(path, body | {"stream": True})
        assert "return_trace" not in gateway.sent()
        assert "trace" not in text
        refused = gateway.ask(path, body | {"return_trace": True})
        assert (refused[0], "return_trace is only allowed when stream" in refused[2]) == (400, True)


def pieces() -> list[Any]:
    """The first says nothing but what the draft did while the prompt was read."""
    waiting = response(text_output="", num_output_tokens=0, finish_reason="")
    last = response(text_output="def", num_output_tokens=1, finish_reason="length")
    tell(waiting, trace=[TREE])
    tell(last, trace=[STEP])
    return [waiting, last]


SERVER_PAGE = """\
card_queued_requests 3
card_open_sessions{decoding="card"} 2
card_open_sessions{decoding="autoregressive"} 1
card_kv_block_tokens 32
card_kv_blocks 200
card_kv_blocks_in_use 50
card_drafts_total{decoding="card"} 7
card_drafted_tokens_total{decoding="card"} 20
card_accepted_tokens_total{decoding="card"} 9
card_accepted_at_total{position="0"} 6
card_accepted_at_total{position="1"} 3
card_way_tokens_per_second{way="ngrams"} 131.5
card_way_share{way="ngrams"} 0.9
"""


class _ServerPage(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(SERVER_PAGE.encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        """Keep the tests' output clean."""


def load_of(url: str) -> dict[tuple[str, ...], float]:
    """Samples of what pickers of endpoints and dashboards read: name and the label beside the
    model's."""
    with running_gateway(server_metrics=url) as gateway:
        page = gateway.ask("/metrics")[2]
    return {
        (sample.name, *(v for k, v in sample.labels.items() if not k.startswith("model"))): (
            sample.value
        )
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith(("nv_trt_llm", "vllm:spec_decode", "card_way"))
    }


def test_metrics_tell_the_servers_load_under_the_names_that_pickers_read() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _ServerPage) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        load = load_of(f"http://127.0.0.1:{server.server_port}/metrics")
        server.shutdown()
    requests, kv = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"
    accepted = "vllm:spec_decode_num_accepted_tokens"
    assert load == {
        (requests, "waiting"): 3,
        (requests, "scheduled"): 3,
        (kv, "tokens_per"): 32,
        (kv, "max"): 200,
        (kv, "used"): 50,
        (kv, "free"): 150,
        (kv, "fraction"): 0.25,
        ("vllm:spec_decode_num_drafts_total",): 7,
        ("vllm:spec_decode_num_draft_tokens_total",): 20,
        (f"{accepted}_total",): 9,
        (f"{accepted}_per_pos_total", "0"): 6,
        (f"{accepted}_per_pos_total", "1"): 3,
        ("card_way_tokens_per_second", "ngrams"): 131.5,
        ("card_way_share", "ngrams"): 0.9,
    }


START_S = 60.0
BOTH = ["127.0.0.1", "::1"]


def connects(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), 5):
            return True
    except ConnectionRefusedError:
        return False


@pytest.mark.parametrize(
    ("package", "host", "heard"),
    [
        ("card_gateway", "::", BOTH),
        ("card_guard", "::", BOTH),
    ],
)
def test_door_listens_on_the_addresses_that_its_host_names(
    package: str, host: str, heard: list[str]
) -> None:
    with reserved_ports(1) as (port,):
        command = [sys.executable, "-m", package, f"--port={port}", f"--host={host}"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            while not any(connects(one, port) for one in heard):
                assert process.poll() is None
            assert [one for one in BOTH if connects(one, port)] == heard
        finally:
            process.terminate()
            process.wait(START_S)


PROGRAM = """
import resource
from card_guard.descriptors import allow_descriptors
from {package} import command
command.{server}.run = lambda *_, **__: print(*resource.getrlimit(resource.RLIMIT_NOFILE))
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 500))
allow_descriptors(400)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
command.app({arguments}, standalone_mode=False)
"""


TOKENIZER_OPTION = f"--tokenizer={TARGET}"


@pytest.mark.parametrize(
    ("package", "server", "arguments"),
    [("card_guard", "asyncio", []), ("card_gateway", "uvicorn.Server", [TOKENIZER_OPTION])],
)
def test_it_asks_for_as_many_descriptors_as_it_may_have(
    package: str, server: str, arguments: list[str]
) -> None:
    program = PROGRAM.format(package=package, server=server, arguments=arguments)
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.stdout == "400 500\n500 500\n", shown.stderr
