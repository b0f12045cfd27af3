"""Settings are validated as a whole: an error names the field, its value and what is allowed."""

from __future__ import annotations

import pytest
from settings_files import Write, refusal

from card.settings import load_settings

pytestmark = pytest.mark.usefixtures("no_overrides")


# --- bad values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("CARD_LIMITS__MAX_TOKENS", "many", "limits.max_tokens: it must be a whole number from 1"),
        ("card_cache__slots", "many", "cache.slots: it must be a whole number from 1 to 256"),
        ("CARD_CACHE", '{"slots": "many"}', "cache.slots: it must be a whole number from 1 to 256"),
        ("CARD_CACHE", '{"slot": 1}', "cache.slot: no such field; allowed: slots, nodes"),
        ("CARD_CACHE", '{"slots": 1', "cache: it must be a mapping like {slots: ...}, written as"),
        ("CARD_CACHE", "5", "cache: it must be a mapping like {slots: ...}, written as JSON"),
        ("CARD_SPECULATION__ROWS__X", "1", "speculation.rows has no fields"),
        ("CARD_LIMIT__MAX_TOKENS", "9", "there is no section LIMIT"),
        ("CARD_TARGET__THREADS_ALONE", "4" * 30, "threads_alone: it must be a whole number"),
        ("CARD_TARGET__THREADS_ALONE", "1" * 5000, "threads_alone: it must be a whole number"),
        ("CARD_SERVING__TRITON_ARGUMENTS", "--foo", "it must be a list of strings"),
        (
            "CARD_SERVING__TRITON_ARGUMENTS",
            "[1]",
            "triton_arguments.0: it must be a string (got 1)",
        ),
    ],
    ids=lambda it: it[:40],
)
def test_a_bad_value_of_a_variable_is_blamed_on_the_variable_alone(
    write: Write, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str
) -> None:
    file = write("limits: {stop_words: 3}")
    monkeypatch.setenv(variable, value)
    message = refusal(file)
    assert message.startswith(f"environment variable {variable}: ")
    assert told in message
    assert str(file) not in message


def test_a_bad_value_of_the_file_is_not_blamed_on_a_variable_of_its_section(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("cache: {slots: many}")
    monkeypatch.setenv("CARD_CACHE", '{"nodes": 63}')
    in_file, in_variable = refusal(file).split("; ")
    assert in_file.startswith(f"settings file {file}: cache.slots: ")
    assert in_variable.startswith("environment variable CARD_CACHE: cache.nodes: ")


def test_fields_that_disagree_tell_which_of_them_variables_set(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARD_LIMITS__PROMPT_TOKENS", "512")
    monkeypatch.setenv("CARD_LIMITS__STOP_WORDS", "5")
    message = refusal(write("limits: {context_tokens: 512}"))
    assert message.endswith("(set by environment variables: CARD_LIMITS__PROMPT_TOKENS)")


HUGE = "a number of thousands of digits"

BAD = [
    ("engine: onnx", "engine", "'onnx'", "auto, openvino, torch or tensorrt_llm"),
    ("target: {device: gpu}", "target.device", "'gpu'", "cpu, cuda or cuda:N, such as cuda:0"),
    ("draft: {dtype: int3}", "draft.dtype", "'int3'", "float32, int8 or int4"),
    ("target: {path: 3}", "target.path", "3", "a path"),
    ("speculation: {lossy_acceptance: [exact]}", "lossy_acceptance", "'exact'", "loose"),
    ("speculation: {query: tree}", "speculation.query", "'tree'", "chain or subtree"),
    ("speculation: {depth: 0}", "speculation.depth", "0", "from 1 to 128"),
    ("speculation: {rows: 65}", "speculation.rows", "65", "a whole number from 1 to 64, or auto"),
    ("limits: {prompt_tokens: 1.5}", "limits.prompt_tokens", "1.5", "a whole number from 1 to"),
    ("limits: {queue_timeout_s: .nan}", "queue_timeout_s", "nan", "above 0 and of at most 3600"),
    ("serving: {flush_ms: .inf}", "serving.flush_ms", "inf", "a number from 0 to 1000"),
    ("serving: {address: '[::1]'}", "serving.address", "'[::1]'", "an IPv4 or IPv6 address"),
    ("serving: {address: 'fe80::1%lo'}", "serving.address", "'fe80::1%lo'", "IPv6 address"),
    (
        "serving: {triton_arguments: ['--http-port=9']}",
        *("triton_arguments", "['--http-port=9']", "set serving.http_port"),
    ),
    (
        "serving: {triton_arguments: ['--http-p=9']}",
        *("triton_arguments", "['--http-p=9']", "--http-p is cut short (--http-port?)"),
    ),
    (
        "serving: {guard: true, guard_arguments: ['--port=9']}",
        *("guard_arguments", "['--port=9']", "--port is for the supervisor to say"),
    ),
    ('cache: {directory: "a\\0b"}', "cache.directory", "'a\\x00b'", "NUL"),
    ("cache: {slots: true}", "cache.slots", "true", "a whole number from 1 to 256"),
    ("limits: {max_tokens: 0x1%s}" % ("0" * 6000), "limits.max_tokens", HUGE, "from 1 to 1048576"),
    ("serving: {triton_arguments: --foo}", "triton_arguments", "'--foo'", "of strings"),
    ("serving: {http_inference: perhaps}", "http_inference", "'perhaps'", "true or false"),
    ("observability: {trace_url: foo}", "trace_url", "'foo'", "such as http://"),
    ("observability: {trace_url: 'http://[::'}", "trace_url", "'http://[::'", "a host"),
    ("observability: {trace_url: 'http://a:0'}", "trace_url", "'http://a:0'", "a port"),
    ("target:", "target", "nothing", "it must be a mapping like {path: ...}"),
    ("target: {tensorrt_llm: {devices: []}}", "devices", "[]", "a list with 1 entry or more"),
    ("draft: {tensorrt_llm: {quantization: FP8}}", "quantization", "'FP8'", "such as fp8"),
]
PYDANTICS_OWN = ("constrained", "literal", "Settings", "tuple", "Value error", "Input", "pattern")
"""What its messages may hold and ours not: for programmers, not for who writes a settings file."""


@pytest.mark.parametrize(("text", "field", "value", "allowed"), BAD, ids=lambda it: it[:40])
def test_a_bad_value_is_refused_with_field_value_and_what_is_allowed(
    write: Write, text: str, field: str, value: str, allowed: str
) -> None:
    file = write(text)
    message = refusal(file)
    assert str(file) in message
    assert f"{field}:" in message or f"{field}." in message
    assert message.count(f"(got {value})") == 1
    assert not [word for word in PYDANTICS_OWN if word in message]
    assert allowed in message


@pytest.mark.parametrize(
    ("text", "field", "allowed"),
    [
        ("limit: {max_tokens: 3}", "'limit'", "limits"),
        ("1: 2", "1", "limits"),
        ("limits: {max_token: 3}", "limits.max_token", "max_tokens"),
        ("target: {thread: 3}", "target.thread", "threads"),
    ],
)
def test_an_unknown_field_is_refused_with_the_names_that_exist(
    write: Write, text: str, field: str, allowed: str
) -> None:
    message = refusal(write(text))
    assert field in message
    assert allowed in message.split("allowed:")[1]


# --- fields that must agree -----------------------------------------------------------------------


GUARDED = "serving: {guard: true, triton_arguments: ['--grpc-%s']}"
DISAGREEING = [
    ("limits: {prompt_tokens: 512, context_tokens: 512}", "prompt_tokens (512) must be below"),
    ("limits: {default_max_tokens: 65, max_tokens: 64}", "default_max_tokens (65) must be at most"),
    (GUARDED % "use-ssl=true", "--grpc-use-ssl, but with guard: true clients meet"),
    (GUARDED % "addr=127.0.0.1", "triton_arguments has --grpc-addr, but"),
    ("serving: {guard_arguments: ['--tls-cert=/a.pem']}", "guard_arguments are given, but guard"),
    (
        "speculation: {drafter: tensorrt}",
        "drafter tensorrt does not run on the draft's engine (auto)",
    ),
    (
        "{engine: tensorrt_llm, speculation: {drafter: cascade}}",
        "(tensorrt_llm); allowed: auto, tensorrt,",
    ),
    (
        "{draft_small: {engine: tensorrt_llm}, speculation: {drafter: hierarchy}}",
        "draft_small does not run on engine tensorrt_llm",
    ),
    ("serving: {http_port: 8002}", "http_port and metrics_port are both 8002"),  # its default
]
AGREEING = [
    "limits: {prompt_tokens: 511, context_tokens: 512}",
    "limits: {default_max_tokens: 64, max_tokens: 64}",
    "serving: {triton_arguments: ['--grpc-use-ssl=true']}",
    "serving: {http_port: 8002, metrics_port: 8000}",
    "serving: {triton_arguments: ['--allow-http=true', '--allow-grpc=1', '--http-thread-count=4']}",
]


@pytest.mark.parametrize(("text", "said"), DISAGREEING)
def test_fields_that_disagree_are_refused_by_name(write: Write, text: str, said: str) -> None:
    message = refusal(write(text))
    assert said in message
    assert "Value error" not in message


@pytest.mark.parametrize(
    ("text", "address", "is_ipv6"),
    [("0.0.0.0", "0.0.0.0", False), ("::", "::", True), ("0:0::1", "::1", True)],
)
def test_address_of_either_family_is_taken(
    write: Write, text: str, address: str, is_ipv6: bool
) -> None:
    serving = load_settings(write(f"serving: {{address: '{text}'}}")).serving
    assert (serving.address, serving.is_ipv6) == (address, is_ipv6)


@pytest.mark.parametrize("text", AGREEING)
def test_fields_that_agree_are_taken(write: Write, text: str) -> None:
    assert load_settings(write(text))


def test_defaults_follow_a_lower_limit_that_is_set_alone(write: Write) -> None:
    limits = load_settings(write("limits: {max_tokens: 64, context_tokens: 512}")).limits
    assert (limits.max_tokens, limits.default_max_tokens) == (64, 64)
    assert (limits.context_tokens, limits.prompt_tokens) == (512, 511)
