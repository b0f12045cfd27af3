"""Settings are validated as a whole: an error names the field, its value and what is allowed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from settings_files import Write, refusal

from card.settings import load_settings

pytestmark = pytest.mark.usefixtures("no_overrides")


# --- bad values -----------------------------------------------------------------------------------


def test_a_bad_value_of_a_variable_is_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CARD_LIMITS__MAX_TOKENS", "many")
    assert "(got 'many') in environment variable CARD_LIMITS__MAX_TOKENS" in refusal()


def test_a_variable_of_no_section_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARD_LIMIT__MAX_TOKENS", "9")
    message = refusal()
    assert "environment variable CARD_LIMIT__MAX_TOKENS: there is no section LIMIT" in message
    assert "LIMITS" in message


BAD = [
    ("engine: onnx", "engine", "'onnx'", "'torch'"),
    ("target: {device: gpu}", "target.device", "'gpu'", "cpu|cuda"),
    ("draft: {dtype: int4}", "draft.dtype", "'int4'", "'bfloat16', 'float32' or 'int8'"),
    ("draft: {threads: 0}", "draft.threads", "0", "greater than or equal to 1"),
    ("target: {path: 3}", "target.path", "3", "valid path"),
    ("speculation: {decoding: magic}", "speculation.decoding", "'magic'", "'draft_then_verify'"),
    ("speculation: {growth: fast}", "speculation.growth", "'fast'", "'best_first' or 'layered'"),
    ("speculation: {query: tree}", "speculation.query", "'tree'", "'chain' or 'subtree'"),
    ("speculation: {width: 33}", "speculation.width", "33", "less than or equal to 32"),
    ("speculation: {depth: 0}", "speculation.depth", "0", "greater than or equal to 1"),
    ("speculation: {rows: 65}", "speculation.rows", "65", "less than or equal to 64"),
    ("speculation: {rows: many}", "speculation.rows", "'many'", "'auto'"),
    ("speculation: {branches: 9}", "speculation.branches", "9", "less than or equal to 8"),
    ("speculation: {gamma: -1}", "speculation.gamma", "-1", "greater than or equal to 1"),
    ("cache: {slots: 257}", "cache.slots", "257", "less than or equal to 256"),
    ("cache: {nodes: 63}", "cache.nodes", "63", "greater than or equal to 64"),
    ("limits: {prompt_tokens: 1.5}", "limits.prompt_tokens", "1.5", "valid integer"),
    ("limits: {max_tokens: none}", "limits.max_tokens", "'none'", "valid integer"),
    ("limits: {context_tokens: [1]}", "limits.context_tokens", "[1]", "valid integer"),
    ("limits: {queue_timeout_s: .nan}", "limits.queue_timeout_s", "nan", "3600"),
    ("limits: {queue_timeout_s: 0}", "limits.queue_timeout_s", "0", "greater than 0"),
    ("limits: {stop_words: -1}", "limits.stop_words", "-1", "greater than or equal to 0"),
    ("serving: {http_port: 65536}", "serving.http_port", "65536", "less than or equal to 65535"),
    ("serving: {grpc_port: http}", "serving.grpc_port", "'http'", "valid integer"),
    ("serving: {deltas_per_s: 0}", "serving.deltas_per_s", "0", "greater than or equal to 1"),
    ("serving: {flush_ms: .inf}", "serving.flush_ms", "inf", "less than or equal to 1000"),
    ("serving: {prefill_chunk: 4}", "serving.prefill_chunk", "4", "greater than or equal to 8"),
    ("serving: {engine_timeout_s: 0.1}", "serving.engine_timeout_s", "0.1", "equal to 0.5"),
    ("serving: {address: localhost}", "serving.address", "'localhost'", "an IPv4 address"),
    ("serving: {address: ''}", "serving.address", "''", "an IPv4 address"),
    ("serving: {address: '::1'}", "serving.address", "'::1'", "an IPv4 address"),
    (
        "serving: {triton_arguments: ['--http-port=9']}",
        "serving.triton_arguments",
        "['--http-port=9']",
        "set serving.http_port",
    ),
    (
        "serving: {triton_arguments: ['--allow-http=false']}",
        "serving.triton_arguments",
        "['--allow-http=false']",
        "http_inference: false closes inference over HTTP",
    ),
    (
        "serving: {triton_arguments: ['--http-p=9']}",
        "serving.triton_arguments",
        "['--http-p=9']",
        "--http-p is cut short (--http-port?)",
    ),
    ('cache: {directory: "a\\0b"}', "cache.directory", "'a\\x00b'", "NUL"),
    ("cache: {slots: true}", "cache.slots", "True", "no switch"),
    ("target: {threads: false}", "target.threads", "False", "no switch"),
    ("target: {threads: many}", "target.threads", "'many'", "a whole number or auto"),
    (
        'serving: {triton_arguments: ["--log-file=a\\0b"]}',
        "serving.triton_arguments",
        "['--log-file=a\\x00b']",
        "NUL",
    ),
    ("limits: 3", "limits", "3", "valid dictionary"),
    ("cache:", "cache", "None", "valid dictionary"),
]


@pytest.mark.parametrize(("text", "field", "value", "allowed"), BAD, ids=[case[0] for case in BAD])
def test_a_bad_value_is_refused_with_field_value_and_what_is_allowed(
    write: Write, text: str, field: str, value: str, allowed: str
) -> None:
    file = write(text)
    message = refusal(file)
    assert str(file) in message
    assert f"{field}:" in message or f"{field}." in message
    assert message.count(f"(got {value})") == 1
    assert "constrained" not in message
    assert "literal" not in message
    assert allowed in message


def test_every_bad_value_is_named_at_once(write: Write) -> None:
    message = refusal(write("cache: {slots: 0}\nlimits: {stop_words: x}"))
    assert "cache.slots" in message
    assert "limits.stop_words" in message


def test_a_bad_value_in_the_environment_is_refused_by_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CARD_CACHE__SLOTS", "plenty")
    message = refusal()
    assert "cache.slots" in message
    assert "'plenty'" in message


def test_a_section_in_the_environment_that_is_not_json_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CARD_LIMITS", "{max_tokens: 3")
    assert '"limits"' in refusal()


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


def test_an_unknown_field_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARD_LIMITS__MAX_TOKEN", "3")
    assert "limits.max_token: no such field" in refusal()


# --- files that are no settings -------------------------------------------------------------------


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    assert f"{tmp_path / 'absent.yaml'} does not exist" in refusal(tmp_path / "absent.yaml")


def test_a_folder_is_no_settings_file(tmp_path: Path) -> None:
    assert f"{tmp_path} is no regular file" in refusal(tmp_path)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    assert f"{file} cannot be read" in refusal(file)


@pytest.mark.parametrize(
    "text",
    ["limits: {", "a: 1\n---\nb: 2", "\tlimits: {}", "1" * 10_000, "a: 2001-99-99", "[" * 10_000],
    ids=lambda text: text[:12],
)
def test_a_file_that_is_not_yaml_is_refused(write: Write, text: str) -> None:
    file = write(text)
    assert f"{file} is not valid YAML" in refusal(file)


@pytest.mark.parametrize(("text", "kind"), [("- limits", "list"), ("3", "int"), ("text", "str")])
def test_a_file_that_holds_no_mapping_is_refused(write: Write, text: str, kind: str) -> None:
    message = refusal(write(text))
    assert "must hold a mapping of sections (engine, target, draft," in message
    assert kind in message


def test_yaml_cannot_run_code(write: Write, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    file = write(f"cache: !!python/object/apply:os.mkdir ['{touched}']")
    assert "is not valid YAML" in refusal(file)
    assert not touched.exists()


# --- fields that must agree -----------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [512, 600])
def test_a_prompt_limit_must_leave_room_for_a_token(write: Write, prompt: int) -> None:
    message = refusal(write(f"limits: {{prompt_tokens: {prompt}, context_tokens: 512}}"))
    assert f"limits.prompt_tokens ({prompt}) must be below limits.context_tokens (512)" in message
    assert load_settings(write("limits: {prompt_tokens: 511, context_tokens: 512}"))


def test_the_default_output_limit_must_be_one_that_a_request_may_ask_for(write: Write) -> None:
    message = refusal(write("limits: {default_max_tokens: 65, max_tokens: 64}"))
    assert "limits.default_max_tokens (65) must be at most limits.max_tokens (64)" in message
    assert load_settings(write("limits: {default_max_tokens: 64, max_tokens: 64}"))


def test_defaults_follow_a_lower_limit_that_is_set_alone(write: Write) -> None:
    limits = load_settings(write("limits: {max_tokens: 64, context_tokens: 512}")).limits
    assert (limits.max_tokens, limits.default_max_tokens) == (64, 64)
    assert (limits.context_tokens, limits.prompt_tokens) == (512, 511)


def test_a_wrong_limit_alone_is_named_not_what_follows_from_it(write: Write) -> None:
    message = refusal(write("limits: {max_tokens: many}"))
    assert "limits.max_tokens" in message
    assert "default_max_tokens" not in message


def test_broken_yaml_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("cache: {slots: 4}\nspeculation: {width: 4\n")
    assert "is not valid YAML: line 3, column 1: " in refusal(file)


def test_options_that_close_nothing_pass(write: Write) -> None:
    arguments = ("--allow-http=true", "--allow-grpc=1", "--http-thread-count=4")
    settings = load_settings(write(f"serving: {{triton_arguments: {list(arguments)}}}"))
    assert settings.serving.triton_arguments == arguments


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / ("a" * 300))


def test_a_named_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "settings.yaml"
    os.mkfifo(pipe)
    assert "is no regular file" in refusal(pipe)
