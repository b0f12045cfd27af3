"""An error names the source, the field, its value and what is allowed."""

from __future__ import annotations

import pytest
from settings_files import Write, refusal

pytestmark = pytest.mark.usefixtures("no_overrides")

BAD = [
    ("engine: onnx", "engine", "'onnx'", "'torch', 'tensorrt_llm' or 'vllm'"),
    ("target: {device: gpu}", "target.device", "'gpu'", "cpu|cuda"),
    ("target: {tensorrt_llm: {devices: []}}", "devices", "[]", "integer from 0"),
    ("speculation: {lossy_acceptance: [exact]}", "lossy_acceptance", "'exact'", "loose"),
    ("limits: {queue_timeout_s: .nan}", "limits.queue_timeout_s", "nan", "above 0 to 3600"),
    ("limits: {max_tokens: 0x1%s}" % ("0" * 6000), "max_tokens", "a number of thousands", "1 to"),
    ("serving: {flush_ms: .inf}", "serving.flush_ms", "inf", "number from 0 to 1000"),
    ("serving: {address: '[::1]'}", "serving.address", "'[::1]'", "IPv4 or IPv6 address"),
    ("serving: {triton_arguments: ['--http-p=9']}", "arguments", "['--http-p=9']", "http_port"),
    ("serving: {triton_arguments: ['--allow-grpc=0']}", "arguments", "['--allow-grpc=0']", "--all"),
    ("serving: {guard_arguments: ['--port=9']}", "arguments", "['--port=9']", "--port"),
    ("cache: {slots: true}", "cache.slots", "True", "true and false"),
    ("observability: {trace_url: 'http://a,b'}", "trace_url", "'http://a,b'", "no commas"),
]


@pytest.mark.parametrize(("text", "field", "value", "allowed"), BAD, ids=lambda it: it[:40])
def test_bad_value_in_file_is_refused_with_field_value_and_allowed(
    write: Write, text: str, field: str, value: str, allowed: str
) -> None:
    file = write(text)
    message = refusal(file)
    assert message.startswith(f"settings file {file}: ")
    assert f"{field}: " in message or f"{field}." in message
    assert message.count(f"(got {value}") == 1
    assert allowed in message


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("CARD_LIMITS__MAX_TOKENS", "many", "limits.max_tokens: "),
        ("card_cache__slots", "many", "cache.slots: "),
        ("CARD_CACHE", '{"slots": "many"}', "cache.slots: "),
        ("CARD_CACHE", '{"slot": 1}', "cache.slot: no such field; did you mean slots?"),
        ("CARD_CACHE", '{"slots": 1', "JSON"),
        ("CARD_CACHE", "5", "cache: "),
        ("CARD_CACHE", "null", "cache: "),
        ("CARD_TARGET__THREADS_ALONE", "1" * 5000, "target.threads_alone: "),
        ("CARD_SERVING__TRITON_ARGUMENTS", "--foo", "JSON"),
        ("CARD_SERVING__TRITON_ARGUMENTS", "[1]", "serving.triton_arguments: "),
        ("CARD_SPECULATION__ROWS__X", "1", "sets no field; did you mean CARD_SPECULATION__ROWS?"),
        ("CARD_LIMIT__MAX_TOKENS", "9", "sets no field; did you mean CARD_LIMITS__MAX_TOKENS?"),
    ],
    ids=lambda it: it[:40],
)
def test_bad_value_of_variable_is_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    message = refusal()
    assert variable in message
    assert said in message


@pytest.mark.parametrize(
    ("text", "field", "nearest"),
    [
        ("limit: {max_tokens: 3}", "limit", "limits"),
        ("limits: {max_token: 3}", "limits.max_token", "max_tokens"),
        ("target: {tensorrt_llm: {device: 3}}", "target.tensorrt_llm.device", "devices"),
    ],
)
def test_unknown_field_is_refused_with_the_nearest_name(
    write: Write, text: str, field: str, nearest: str
) -> None:
    message = refusal(write(text))
    assert f"{field}: no such field; did you mean {nearest}?; allowed: " in message


GUARDED = "serving: {guard: true, triton_arguments: ['--grpc-%s']}"
DISAGREEING = [
    ("limits: {prompt_tokens: 512, context_tokens: 512}", "limits.prompt_tokens (512)"),
    ("limits: {default_max_tokens: 65, max_tokens: 64}", "limits.default_max_tokens (65)"),
    ("target: {threads: 2, threads_alone: 3}", "target: threads_alone (3)"),
    ("target: {tensorrt_llm: {devices: [0, 1]}}", "target.tensorrt_llm: devices [0, 1]"),
    (GUARDED % "use-ssl=true", "--grpc-use-ssl=true"),
    ("serving: {guard_arguments: ['--tls-cert=/a.pem']}", "guard is false"),
    ("serving: {http_port: 8002}", "http_port and metrics_port are both 8002"),
    ("speculation: {drafter: tensorrt}", "speculation.drafter tensorrt"),
    ("{engine: tensorrt_llm, speculation: {drafter: cascade}}", "speculation.drafter cascade"),
    ("{draft_small: {engine: tensorrt_llm}, speculation: {drafter: hierarchy}}", "draft_small.en"),
    ("target: {engine: openvino, device: cuda}", "target.device is cuda"),
    ("draft: {dtype: float16}", "draft.dtype float16"),
    ("draft: {engine: vllm, device: cuda}", "takes CUDA devices as draft.vllm.devices"),
    ("target: {engine: vllm, device: cuda}", "takes CUDA devices as target.vllm.devices"),
    ("target: {engine: vllm, dtype: int4}", "target.dtype int4"),
    ("{target: {engine: vllm}, speculation: {query: subtree}}", "speculation.query is subtree"),
    ("{target: {engine: vllm}, speculation: {decoding: pearl}}", "speculation.decoding pearl"),
    ("target: {vllm: {model: /x}}", "target.vllm: model is not set here: path decides it"),
    ("target: {vllm: {python: bin/python}}", "python (bin/python) must be an absolute path"),
    ("draft: {device: cuda, dtype: int8}", "draft.dtype int8"),
    ("{draft: null, speculation: {drafter: tree}}", "speculation.drafter is tree"),
]


@pytest.mark.parametrize(("text", "said"), DISAGREEING)
def test_fields_that_disagree_are_refused_by_name(write: Write, text: str, said: str) -> None:
    assert said in refusal(write(text))
