"""`scripts/run` as a person at a terminal meets it: what it shows, and what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shlex
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest
from real_pair import PAIR_VARIABLES

from card.serving.supervision.processes import REGIONS, find_orphans
from card.settings import REPOSITORY_ROOT
from loading.supervised import reserved_ports

RUN = REPOSITORY_ROOT / "scripts" / "run"
LIMIT_S = 180.0
PORT_OPTIONS = ("http", "grpc", "metrics", "health")
GREEN, YELLOW = "\x1b[32m", "\x1b[1;33m"
PROMPT = "def fibonacci(n):"


@dataclass
class Terminal:
    """`scripts/run` on a terminal of its own; `mount` is its shared memory."""

    process: subprocess.Popen[bytes]
    screen: int
    mount: Path
    shown: str = ""
    regions: set[str] = field(default_factory=set)
    """Prefixes of shared-memory files that it was seen to use."""

    def until(self, holds: Callable[[], bool]) -> None:
        """Read the screen until `holds()`, or to the end of the program."""
        limit = time.monotonic() + LIMIT_S
        while not holds() and self._read():
            for directory in self.mount.glob("card_run_*"):
                self.regions.add(directory.name.replace("run", "stub"))
            assert time.monotonic() < limit, f"nothing happened on:\n{self.shown}"

    def end(self) -> int:
        """Read to the end; the exit code."""
        self.until(lambda: False)
        return self.process.wait(LIMIT_S)

    def printed_curl(self, path: str) -> list[str]:
        """The words of the command that asks `path`, once it is shown whole. Triton may have begun
        a line of its own before it: what it says and the line's end are two writes."""
        command = re.compile(rf"curl -sN? \S+{path} .*?-d '[^']*'")
        self.until(lambda: command.search(self.shown) is not None)
        found = command.search(self.shown)
        assert found is not None, self.shown
        return shlex.split(found[0])

    def residue(self) -> list[object]:
        """Files and processes that are still there."""
        regions = [path for prefix in self.regions for path in REGIONS.glob(f"{prefix}*")]
        return [*self.mount.iterdir(), *regions, *find_orphans(str(self.mount))]

    def _read(self) -> bool:
        readable, _, _ = select.select([self.screen], [], [], 0.05)
        if not readable:
            return True
        try:
            piece = os.read(self.screen, 65536)
        except OSError:  # the last program on this terminal has ended
            return False
        self.shown += piece.decode(errors="replace")
        return bool(piece)


@contextlib.contextmanager
def terminal(
    *arguments: str, ports: list[int], variables: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    environment = {**os.environ, **PAIR_VARIABLES, **(variables or {})}
    options = [f"--{name}-port={port}" for name, port in zip(PORT_OPTIONS, ports, strict=False)]
    with tempfile.TemporaryDirectory(dir=REGIONS, prefix="run-script-") as mount:
        screen, keyboard = pty.openpty()
        process = subprocess.Popen(
            [RUN, *arguments, *options],
            stdin=keyboard,
            stdout=keyboard,
            stderr=keyboard,
            env=environment | {"CARD_CACHE__DIRECTORY": mount, "TERM": "xterm", "COLUMNS": "120"},
            start_new_session=True,
        )
        os.close(keyboard)
        try:
            yield Terminal(process, screen, Path(mount))
        finally:
            process.terminate()
            process.wait(LIMIT_S)
            os.close(screen)


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """One more than are named: OpenAI's."""
    with reserved_ports(len(PORT_OPTIONS) + 1) as ports:
        yield ports


@pytest.fixture
def proxy() -> Iterator[socket.socket]:
    """Takes every connection and answers none: who leaves this machine through it stays there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


def test_a_completion_is_shown_in_two_colours_with_its_figures(
    ports: list[int], proxy: socket.socket
) -> None:
    """Behind a proxy too, which has no part in it; its health port is closed to other hosts."""
    url = "http://{}:{}".format(*proxy.getsockname())
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"), url)
    proxies |= dict.fromkeys(("no_proxy", "NO_PROXY", "no_grpc_proxy"), "")
    with terminal(PROMPT, "--max-tokens=96", ports=ports[:3], variables=proxies) as run:
        assert run.end() == 0
        for wanted in (
            PROMPT,
            GREEN,
            YELLOW,
            "tokens/s",
            "autoregressive",
            "mean accepted tokens per target step",
            "The texts are identical.",
        ):
            assert wanted in run.shown
        assert "unknown" not in run.shown
        assert run.regions
        assert run.residue() == []
    with pytest.raises(BlockingIOError):
        proxy.accept()


@pytest.mark.parametrize(
    ("moment", "number"),
    [("while the server starts", signal.SIGTERM), ("while the text streams", signal.SIGINT)],
)
def test_an_interrupted_run_leaves_nothing(
    ports: list[int], moment: str, number: signal.Signals
) -> None:
    with terminal(PROMPT, "--max-tokens=900", ports=ports) as run:
        if moment == "while the server starts":
            run.until(lambda: bool(run.regions))
        else:
            run.until(lambda: YELLOW in run.shown)
        assert run.process.poll() is None, run.shown
        run.process.send_signal(number)
        assert run.end() == 130
        assert "tokens/s" not in run.shown
        assert "Traceback" not in run.shown
        assert run.residue() == []


def test_serve_prints_a_curl_line_that_works_and_stops_on_sigterm(ports: list[int]) -> None:
    with terminal("--serve", ports=ports) as run:
        command = run.printed_curl("/generate_stream")
        url = next(word for word in command if word.startswith("http"))
        body = command[command.index("-d") + 1].encode()
        with urllib.request.urlopen(url, body, timeout=LIMIT_S) as answer:
            events = [row for row in answer.read().decode().splitlines() if row]
        text = "".join(json.loads(row.removeprefix("data: "))["text_output"] for row in events)
        assert text
        for port in ports[:-1]:
            assert f"127.0.0.1:{port}" in run.shown
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 0
        assert run.residue() == []


def test_openais_printed_line_works_and_everything_stops_on_ctrl_c(ports: list[int]) -> None:
    port = ports[-1]
    with terminal("--openai", f"--openai-port={port}", ports=ports[:-1]) as run:
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
