"""The command line: what it prints where, what it sends, how it ends."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from child_process import child
from client_double import Request, TritonDouble, refusal, response
from rich.console import Console
from typer.testing import CliRunner

import card_client
from card_client import Delta
from card_client.chat_template import SYSTEM
from card_client.cli import app
from card_client.display import TextPrinter


def text_input(request: Request) -> str:
    names = [i.name for i in request.inputs]
    row: bytes = request.raw_input_contents[names.index("text_input")]
    return row[4:].decode()


def test_generate_prints_exactly_the_text_and_the_figures_beside_it(triton: TritonDouble) -> None:
    triton.answer = lambda request: [
        response(text_output="\tx,", accepted_bytes=0, finish_reason=""),
        response(
            text_output=" é[bold]):",
            accepted_bytes=2,
            finish_reason="length",
            num_output_tokens=6,
            total_accepted_draft_tokens=4,
            target_steps=2,
        ),
    ]
    result = CliRunner().invoke(app, ["generate", "def f("])

    assert result.exit_code == 0
    assert result.stdout == "\tx, é[bold]):"
    assert "6 tokens" in result.stderr
    assert "tokens/s" in result.stderr
    assert "2.00 accepted per step" in result.stderr
    assert "ended by length" in result.stderr


def test_generate_sends_what_its_options_say_and_no_more(triton: TritonDouble) -> None:
    options = "--max-tokens 64 --temperature 0.8 --decoding card --stop-words a --stop-words b"
    CliRunner().invoke(app, ["generate", "def f(", *options.split()])
    (request,) = triton.requests
    asked = {"text_input", "max_tokens", "stream", "temperature", "stop_words", "decoding"}
    figures = {"return_num_output_tokens", "return_perf_metrics"}
    assert {i.name for i in request.inputs} == asked | figures


def test_a_refused_request_is_one_line_and_exit_code_1(triton: TritonDouble) -> None:
    triton.answer = lambda request: [refusal("INVALID_ARGUMENT: top_p is 7.0; allowed is [0, 1]")]
    result = CliRunner().invoke(app, ["generate", "x", "--top-p", "7"])
    assert result.exit_code == 1
    assert result.stderr == "error: INVALID_ARGUMENT: top_p is 7.0; allowed is [0, 1]\n"


def test_health_exits_with_1_unless_ready(triton: TritonDouble) -> None:
    well = CliRunner().invoke(app, ["health"])
    assert well.exit_code == 0
    assert well.stdout.endswith(": ready\n")
    triton.ready = False
    assert CliRunner().invoke(app, ["health"]).exit_code == 1


def test_ctrl_c_cancels_on_the_server_and_exits_with_130(triton: TritonDouble) -> None:
    triton.hold(response(text_output="x", finish_reason=""))
    command = [sys.executable, "-m", "card_client.cli", "generate", "def f("]
    environment = os.environ | {"PYTHONPATH": str(Path(card_client.__file__).parents[1])}
    with child(*command, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert said == b"cancelled\n"
    assert triton.wait_until_client_left()


def test_chat_sends_the_whole_conversation_until_it_is_reset(triton: TritonDouble) -> None:
    triton.answer = lambda request: [response(text_output="x): pass", finish_reason="stop")]
    turns = "def f(\ndef g(\n/reset\nif a:\\\n    b\n/quit\nnever sent\n"
    result = CliRunner().invoke(app, ["chat"], input=turns)

    assert result.exit_code == 0
    assert [text_input(request) for request in triton.requests] == [
        "User: def f(\nAssistant:",
        "User: def f(\nAssistant: x): pass\nUser: def g(\nAssistant:",
        "User: if a:\n    b\nAssistant:",
    ]
    assert result.stdout == "x): pass\n" * 3


CHATML = (
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{{ message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_chat_uses_the_template_that_the_server_tells(triton: TritonDouble) -> None:
    triton.parameters = {"chat_template": CHATML, "bos_token": "<s>", "leading_token": "<s>"}
    triton.answer = lambda request: [response(text_output="Hé!", finish_reason="stop")]
    result = CliRunner().invoke(app, ["chat"], input="one\ntwo\n/show\n/reset\nthree\n")

    assert result.exit_code == 0
    system = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
    first = f"{system}<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n"
    assert [text_input(request) for request in triton.requests] == [
        first,
        f"{first}Hé!<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n",
        f"{system}<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n",
    ]
    assert "user: one\nassistant: Hé!\nuser: two\nassistant: Hé!\n" in result.stdout


USER = "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n"
REFUSES_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"


@pytest.mark.parametrize(
    ("template", "options", "sent"),
    [
        (None, [], "User: one\nAssistant:"),
        (None, ["--system=Be brief."], "Be brief.\n\nUser: one\nAssistant:"),
        (CHATML, ["--system=Be brief."], f"<|im_start|>system\nBe brief.<|im_end|>\n{USER}"),
        (CHATML, ["--system="], USER),
        (REFUSES_SYSTEM + CHATML, [], USER),
    ],
)
def test_a_turn_is_sent_as_the_person_and_the_servers_template_want_it(
    triton: TritonDouble, template: str | None, options: list[str], sent: str
) -> None:
    triton.parameters = None if template is None else {"chat_template": template}
    assert CliRunner().invoke(app, ["chat", *options], input="one\n").exit_code == 0
    assert text_input(triton.requests[0]) == sent


def test_a_template_that_is_none_is_said_before_the_first_turn(triton: TritonDouble) -> None:
    triton.parameters = {"chat_template": "{% for %}"}
    result = CliRunner().invoke(app, ["chat"], input="one\n")
    assert result.exit_code == 1
    assert "wrong chat template" in result.stderr
    assert not triton.requests


@pytest.mark.parametrize(
    ("delta", "terminal", "shown"),
    [
        (Delta(text="accepted!", accepted_bytes=8), True,
         "\x1b[32maccepted\x1b[0m\x1b[1;33m!\x1b[0m"),
        (Delta(text="a\x1b[2Jb\r\n\tc"), True, "a\u241b[2Jb\u240d\n\tc"),  # not obeyed
        (Delta(text="word " * 20), True, "word " * 20),  # neither wrapped nor cut
        (Delta(text="word " * 20, accepted_bytes=7), False, "word " * 20),
    ],
)  # fmt: skip
def test_text_is_coloured_by_who_wrote_it_and_otherwise_shown_as_it_is(
    delta: Delta, terminal: bool, shown: str
) -> None:
    file = io.StringIO()
    TextPrinter(
        Console(
            file=file, force_terminal=terminal, color_system="standard", no_color=False, width=10
        )
    ).text(delta)
    assert file.getvalue() == shown
