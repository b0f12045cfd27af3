"""The OpenAI-compatible gateway as a child process beside the server."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from card.serving.addresses import bracketed, reachable
from card.settings import ServingSettings
from loading.supervised import ChildProcess

MODEL = "ensemble"


class GatewayProcess(ChildProcess):
    """Listens where the server listens, on a port of its own; it is ready with the server."""

    def __init__(
        self, serving: ServingSettings, tokenizer: Path, port: int, options: Sequence[str] = ()
    ) -> None:
        """`tokenizer` is the target's directory; `options` are further ones of `card-gateway`."""
        host = bracketed(reachable(serving.address))
        self.url = f"http://{host}:{port}"
        self._stopping = False
        command = [
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
        super().__init__("the OpenAI gateway", f"{self.url}/health", command)

    def stop(self) -> None:
        """Let open answers finish, then end; a second call cuts them off."""
        super().stop()
        if self._stopping and self.is_running:
            # uvicorn takes a second SIGTERM for the first, but a SIGINT behind it ends it at once.
            self.process.send_signal(signal.SIGINT)
        self._stopping = True


def curl_line(url: str) -> str:
    """A command that asks OpenAI's interface at `url` something."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}]})
    has_key = os.environ.get("CARD_GATEWAY_API_KEY")
    key = " -H 'Authorization: Bearer '$CARD_GATEWAY_API_KEY" if has_key else ""
    return f"curl -s {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'"
