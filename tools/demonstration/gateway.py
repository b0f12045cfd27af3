"""The OpenAI-compatible gateway as a child process beside the server."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from card.serving.addresses import bracketed, reachable
from card.settings import ServingSettings
from loading.supervised import says_ok, spawned

MODEL = "ensemble"


class GatewayEndedError(RuntimeError):
    """The gateway ended; its messages stand on standard error."""


class GatewayProcess:
    """Listens where the server listens, on a port of its own. Its maker must `stop` it.

    Like the server it is out of reach of a Ctrl-C at the terminal, and ends with its parent.
    """

    def __init__(
        self, serving: ServingSettings, tokenizer: Path, port: int, options: Sequence[str] = ()
    ) -> None:
        """`tokenizer` is the target's directory; `options` are further ones of `card-gateway`."""
        host = bracketed(reachable(serving.address))
        self._url = f"http://{host}:{port}"
        self._command = [
            *(sys.executable, "-m", "card_gateway"),
            f"--triton={host}:{serving.grpc_port}",
            f"--model={MODEL}",
            f"--tokenizer={tokenizer}",
            f"--host={serving.address}",
            f"--port={port}",
            f"--drain-s={math.ceil(serving.drain_s)}",
            f"--server-metrics=http://{host}:{serving.metrics_port}/metrics",
            "--page",
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def start(self, output: IO[bytes] | None = None) -> None:
        """Start it, from the main thread. Its log goes to `output`, or to standard error."""
        self._process = spawned(self._command, output)

    def is_ready(self) -> bool:
        """Whether it answers and the server behind it too. Raises `GatewayEndedError`."""
        self.check_alive()
        return says_ok(f"{self._url}/health")

    def check_alive(self) -> None:
        """Raises `GatewayEndedError` if it has ended."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise GatewayEndedError(f"the OpenAI gateway ended with exit code {code}")

    def say_address(self) -> None:
        """Print where it listens, and a line that asks it something."""
        body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}]})
        key = " -H 'Authorization: Bearer '$CARD_GATEWAY_API_KEY"
        print(f"OpenAI   {self._url}/v1")
        print(f"page     {self._url}/")
        print(
            f"curl -s {self._url}/v1/chat/completions -H 'Content-Type: application/json'"
            f"{key if os.environ.get('CARD_GATEWAY_API_KEY') else ''} -d '{body}'",
            flush=True,
        )

    def stop(self) -> None:
        """Let open answers finish, then end; a second call cuts them off."""
        if self._process is not None and self._process.poll() is None:
            # uvicorn takes a second SIGTERM for the first, but a SIGINT behind it ends it at once.
            self._process.send_signal(signal.SIGINT if self._stopping else signal.SIGTERM)
            self._stopping = True

    def wait(self) -> None:
        """Wait for the end."""
        if self._process is not None:
            self._process.wait()
