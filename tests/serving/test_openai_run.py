"""`scripts/run --openai` as a person at a terminal meets it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator

import openai
import pytest
from test_run_script import LIMIT_S, terminal

from card.serving.supervision.ports import reserved_ports


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """The last is OpenAI's."""
    with reserved_ports(5) as ports:
        yield ports


def test_the_printed_line_works_and_everything_stops_on_ctrl_c(ports: list[int]) -> None:
    *ports, port = ports
    with terminal("--openai", f"--openai-port={port}", ports=ports) as run:
        command = run.printed_curl("/v1/chat/completions")
        answer = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=True)
        said = json.loads(answer.stdout)
        assert said["choices"][0]["message"]["role"] == "assistant"
        assert said["usage"]["total_tokens"] > 0
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
        assert [model.id for model in client.models.list()] == ["ensemble"]
        assert f"http://127.0.0.1:{port}/v1" in run.shown
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 0
        assert run.residue() == []
        with socket.socket() as gone:
            assert gone.connect_ex(("127.0.0.1", port)) != 0
